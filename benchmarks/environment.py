"""The environment of every benchmark; imported before torch.

Threads that wait for each other sleep. If they spun, CPU time would include their waiting, and a
busy machine would slow down programs with many small ops far more than others. No model is
downloaded.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
