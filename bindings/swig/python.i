/* SPDX-License-Identifier: Apache-2.0
 * tpfsdp.capi, the private lower layer of the Python package: one function per C function, under its name without
 * prefix. For SWIG 4.1 to 4.5, plain or with the limited API. The typed layer above is bindings/python/tpfsdp. */
%module(package="tpfsdp", threads="1") capi

/* The interpreter lock is kept, except around what may wait. */
%feature("nothread", "1");
%include "common.i"
%define TPFSDP_GIVE_UP_LOCK(F)
%feature("nothread", "0") tpfsdp_##F;
%enddef
TPFSDP_EACH_WAITING(TPFSDP_GIVE_UP_LOCK)

%rename("%(strip:[tpfsdp_])s") "";
%rename("%(strip:[TPFSDP_])s", %$isenumitem) "";
%rename("%(strip:[TPFSDP_])s", %$isconstant) "";

%{
#include "python_support.hpp"
namespace py = tpfsdp::python;
%}

%include "python_results.i"
%include "python_arguments.i"
%include "python_callbacks.i"
%include "python_dlpack.i"

TPFSDP_HEADERS
