"""What traffic is told: policy, steer page, modes."""
