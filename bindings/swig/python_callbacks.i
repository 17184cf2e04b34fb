/* SPDX-License-Identifier: Apache-2.0
 * Callables as callbacks. The callable gets the *_args record, borrowed for the call, and returns None or a status;
 * what it raises is raised again from the library call that fails because of it. */
%define PY_CALLBACK(X)
%ignore tpfsdp_##X##_args::struct_size;
%ignore tpfsdp_##X##_args::reserved;
%ignore tpfsdp_##X##_callback::call;
%ignore tpfsdp_##X##_callback::user;
%ignore tpfsdp_##X##_callback::drop;
%nodefaultctor tpfsdp_##X##_args;
%nodefaultdtor tpfsdp_##X##_args;
%{
static tpfsdp_status call_##X(void *user, const tpfsdp_##X##_args *args) {
  py::Gil gil;
  return py::call(static_cast<PyObject *>(user), SWIG_NewPointerObj((void *)args, SWIGTYPE_p_tpfsdp_##X##_args, 0));
}
static tpfsdp_##X##_callback make_##X(PyObject *callable) {
  Py_INCREF(callable);
  return {call_##X, callable, py::drop};
}
%}
/* As a member of an options record: the reference is given away with the record. */
%extend tpfsdp_##X##_callback {
  tpfsdp_##X##_callback(PyObject *callable) { return new tpfsdp_##X##_callback(make_##X(callable)); }
}
/* As an argument. */
%typemap(in, noblock=1) const tpfsdp_##X##_callback *callback (tpfsdp_##X##_callback record) {
  if ($input == Py_None) {
    $1 = nullptr;
  } else if (!PyCallable_Check($input)) {
    PyErr_SetString(PyExc_TypeError, "a callable or None is needed");
    SWIG_fail;
  } else {
    record = make_##X($input);
    $1 = &record;
  }
}
%enddef
TPFSDP_EACH_CALLBACK(PY_CALLBACK)

%ignore tpfsdp_rank_args::error; /* exceptions travel in Python */
/* Any object, lent for the call. */
%typemap(in, noblock=1) void *payload { $1 = $input == Py_None ? nullptr : $input; }
%ignore tpfsdp_module_args::payload;
%extend tpfsdp_module_args {
  PyObject *get_payload() {
    PyObject *payload = $self->payload ? static_cast<PyObject *>($self->payload) : Py_None;
    Py_INCREF(payload);
    return payload;
  }
}
/* *data, where the host's memory callback answers. */
%ignore tpfsdp_memory_args::data;
%ignore tpfsdp_memory_args::stream;
%extend tpfsdp_memory_args {
  void set_address(unsigned long long address) { *$self->data = reinterpret_cast<void *>(address); }
  unsigned long long get_address() { return reinterpret_cast<unsigned long long>(*$self->data); }
}
