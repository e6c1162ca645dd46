"""Plans on their way into a running program: addresses, the engine's follower, torch.compile."""
