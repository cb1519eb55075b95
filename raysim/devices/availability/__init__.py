"""Models when devices are on: one model a file, each a pure function of the seed, the client and the instant.

A further model is a class that derives from `Availability`, in a file of its own, and a line in `AVAILABILITY`; a
user's own needs no line, since a configuration can name it by ``package.module:Name``.
"""

from raysim.devices.availability.always import Always
from raysim.devices.availability.bernoulli import Bernoulli
from raysim.devices.availability.cyclic import Cyclic
from raysim.devices.availability.markov import Diurnal, Markov, Zone
from raysim.devices.availability.model import Availability, Times
from raysim.devices.availability.shares import Beta, Label, ShareBased
from raysim.devices.availability.trace import Trace
from raysim.registry import Registry

AVAILABILITY = Registry(
    "devices.availability",
    {
        "always": Always,
        "bernoulli": Bernoulli,
        "markov": Markov,
        "cyclic": Cyclic,
        "trace": Trace,
    },
    injected=("seed", "clients", "scores"),
    base=Availability,
)

__all__ = [
    "AVAILABILITY",
    "Always",
    "Availability",
    "Bernoulli",
    "Beta",
    "Cyclic",
    "Diurnal",
    "Label",
    "Markov",
    "ShareBased",
    "Times",
    "Trace",
    "Zone",
]
