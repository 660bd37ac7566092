"""Task groups for DAGs. Each module has one."""
