"""What a support case needs of a host, in one archive without secrets."""
