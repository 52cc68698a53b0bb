# One image for every role; the command says which: docker run tidegate gateway …
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY protocols protocols
COPY gateway gateway
COPY store store
COPY namesrv namesrv
COPY spark spark
COPY conf conf
ARG EXTRAS="[speed]"
RUN python -m venv /opt/tidegate \
    && /opt/tidegate/bin/pip install --no-cache-dir --disable-pip-version-check ".${EXTRAS}"

FROM python:3.11-slim
# New named volumes take over the owner of the folder they cover.
RUN useradd --system --create-home --home-dir /var/lib/tidegate tidegate \
    && mkdir -p /etc/tidegate /data && chown tidegate: /etc/tidegate /data
COPY --from=build /opt/tidegate /opt/tidegate
ENV PATH=/opt/tidegate/bin:$PATH PYTHONUNBUFFERED=1
USER tidegate
WORKDIR /var/lib/tidegate
ENTRYPOINT ["tidegate"]
CMD ["--help"]
