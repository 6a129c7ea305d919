#!/bin/sh
# Creates the namespace, sets how long it keeps finished runs, and registers Ratchet's search
# attributes. May be run again at any time: what is there stays. The names and types are those of
# ATTRIBUTES in workflows/api.py; the server's address comes from TEMPORAL_ADDRESS.
set -eu

namespace=${TEMPORAL_NAMESPACE:-default}
retention=${RATCHET_RETENTION:-90d}

attempts=30
until temporal operator cluster health >/dev/null 2>&1; do
    attempts=$((attempts - 1))
    if [ "$attempts" -le 0 ]; then
        echo "the Temporal server at ${TEMPORAL_ADDRESS:-localhost:7233} did not become healthy" >&2
        exit 1
    fi
    sleep 2
done

if temporal operator namespace describe --namespace "$namespace" >/dev/null 2>&1; then
    temporal operator namespace update --namespace "$namespace" --retention "$retention"
else
    temporal operator namespace create --namespace "$namespace" --retention "$retention"
fi

attribute() { # name, type
    # a namespace that was created a moment ago is not known to every part of the server at once
    attempts=30
    until temporal operator search-attribute create --namespace "$namespace" --name "$1" --type "$2"; do
        attempts=$((attempts - 1))
        if [ "$attempts" -le 0 ]; then
            echo "the search attribute $1 ($2) could not be registered in $namespace" >&2
            exit 1
        fi
        sleep 1
    done
}

attribute AgentName Keyword
attribute AgentMachine Keyword
attribute AgentState Keyword
attribute AgentWaiting Keyword
attribute AgentWaitingSince Datetime
attribute AgentDeadline Datetime
attribute AgentExit Keyword
