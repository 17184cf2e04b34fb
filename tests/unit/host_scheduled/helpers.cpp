// SPDX-License-Identifier: Apache-2.0
// The ranks and services of tests/unit/host, compiled into this executable as well: here the engine has its scheduler.
#include "../host/ranks.cpp"
#include "../host/services.cpp"
