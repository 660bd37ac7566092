"""The application file: ``spark-submit …/engine/app.py --job-id ID --attempt N --namespace URL``."""

import sys

from airflow_provider_lance.engine.job.pandas_import import import_arrow_without_pandas
from airflow_provider_lance.engine.main import main

if __name__ == "__main__":
    import_arrow_without_pandas()
    sys.exit(main())
