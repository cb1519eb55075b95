"""raysim: the mathematics and the nouns of cross-device federated min-max learning.

No Ray, no wall clock and no global random state below this package. Experiments are started from `cluster`.
"""
