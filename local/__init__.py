"""The demo and the tests on one machine: environments, services and the follower. Standard library only."""
