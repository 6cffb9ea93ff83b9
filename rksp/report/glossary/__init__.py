"""Every printed word that is not a check, a monitor, an arm or an option: what it means."""
