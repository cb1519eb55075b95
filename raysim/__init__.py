"""The mathematics of cross-device federated min-max learning: algorithms, problems, models, data and devices.

No Ray, no wall clock and no global random state below this package. Experiments are started from `cluster`.
"""
