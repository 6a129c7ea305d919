"""Every run of a machine in a domain: explored with the kernel's own functions, and watched."""
