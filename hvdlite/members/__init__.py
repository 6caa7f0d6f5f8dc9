"""The members of a group, and the hosts they run on."""
