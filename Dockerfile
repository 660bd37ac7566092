# One image for every role of docker-compose.yaml: Airflow, the namespace server, Spark master and workers.
FROM python:3.12-slim-bookworm

RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini curl \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 50000 airflow

WORKDIR /opt/airflow-provider-lance
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY airflow_provider_lance ./airflow_provider_lance
# psycopg2 and asyncpg are Airflow's way to PostgreSQL; psycopg is the job registry's.
RUN pip install --no-cache-dir -c constraints.txt ".[spark,spark-submit,server,postgres]" psycopg2-binary asyncpg

COPY scripts/compose-entrypoint /usr/local/bin/compose-entrypoint
COPY dags /opt/airflow/dags
ENV AIRFLOW_HOME=/opt/airflow \
    JAVA_HOME=/usr/lib/jvm/default-java \
    PYTHONUNBUFFERED=1
RUN ln -sfn "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /usr/lib/jvm/default-java \
 && mkdir -p /opt/airflow/logs /var/lib/lance && chown -R airflow: /opt/airflow /var/lib/lance
USER airflow
ENTRYPOINT ["tini", "--", "compose-entrypoint"]
