"""Plans in a running program: addresses, the engine's follower, torch.compile."""
