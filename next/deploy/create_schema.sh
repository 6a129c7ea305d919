#!/bin/sh
# Creates Temporal's two databases in PostgreSQL and brings their schemas to this image's version.
# Runs before each start of the server; each of the three commands leaves alone what is there.
set -eu

schemas=/etc/temporal/schema/postgresql/v12

bring_up() { # database, folder of its schema
    sql="temporal-sql-tool --plugin postgres12 --ep $POSTGRES_SEEDS --port $DB_PORT --user $POSTGRES_USER --db $1"
    $sql create
    $sql setup-schema -v 0.0
    $sql update-schema -d "$schemas/$2/versioned"
}

bring_up temporal temporal
bring_up temporal_visibility visibility
