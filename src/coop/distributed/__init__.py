"""Several processes: what torch.distributed needs besides the operators that it calls."""
