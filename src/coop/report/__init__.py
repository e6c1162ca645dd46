"""Pictures and pages made from events and simulations."""
