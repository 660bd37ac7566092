"""``python -m airflow_provider_lance.cli`` is the command ``airflow-lance``."""

from __future__ import annotations

import sys

from airflow_provider_lance.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
