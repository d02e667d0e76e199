#!/usr/bin/env bash
exec integration_tests/gpu/device_checks
