"""``gt.checkpoint``: what a run needs to go on, saved beside it, whole or not at all, and loaded on any number of workers.

Next: ``saving``, ``loading``, ``folders`` and ``files`` (what is on the disk), ``states`` (what has a state). Recomputing in the backward,
which torch calls checkpointing, is ``gt.utils.checkpoint``.
"""

from gt.checkpoint.files import DamagedError
from gt.checkpoint.loading import Resumed, latest, load, load_into, resume
from gt.checkpoint.saving import Save, SaveError, save

__all__ = ["DamagedError", "Resumed", "Save", "SaveError", "latest", "load", "load_into", "resume", "save"]
