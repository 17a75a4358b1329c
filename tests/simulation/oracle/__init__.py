"""The scheduler's definitions (docs/scheduling.md) once more, as slowly and plainly as they read.

Nothing here is shared with the core but its values (config, model): every fact is computed anew
from who holds which GPU. What the two say alike is most likely what the definitions say.
"""
