# Airflow with the project inside: the same image for every Airflow service of docker-compose.yaml. No torch, no engine.
FROM apache/airflow:3.3.2-python3.11

COPY requirements.txt requirements-production.txt /opt/airflow/
RUN pip install --no-cache-dir -r /opt/airflow/requirements.txt -r /opt/airflow/requirements-production.txt

# eagle3/ is here because it is synced from here to the GPU host
COPY --chown=airflow:root dags /opt/airflow/dags
COPY --chown=airflow:root plugins /opt/airflow/plugins
COPY --chown=airflow:root include /opt/airflow/include
COPY --chown=airflow:root eagle3 /opt/airflow/eagle3

# dags/ and plugins/ import `include` from here
ENV PYTHONPATH=/opt/airflow
USER airflow
