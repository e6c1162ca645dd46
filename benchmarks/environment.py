"""The surroundings of every benchmark; imported before torch.

Threads that wait for each other sleep: else CPU time would count their waiting, and a busy machine
would slow down what has many small ops far more than the rest. No model is fetched from anywhere.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
