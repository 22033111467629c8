"""What a training sample costs, step by step, and what would be cheaper to bake into the store.

`ocrstore.torch.profiling.profile_store` measures; here are the records it fills, the advice drawn
from them, the table and the plot. Nothing here imports torch.
"""

from ocrstore.profiling.advice import Advice, advise
from ocrstore.profiling.records import Cost, Profile, Step

__all__ = ["Advice", "Cost", "Profile", "Step", "advise"]
