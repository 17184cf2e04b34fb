/* SPDX-License-Identifier: Apache-2.0
 * What comes back: statuses as exceptions, out-parameters as results, handles retained where the library lends them. */

/* Status and error. The variable has no initializer where it is declared, since a failed conversion jumps over it. */
%typemap(in, numinputs=0, noblock=1) tpfsdp_error **error {
  tpfsdp_error *py_error;
  py_error = nullptr;
  $1 = &py_error;
}
%typemap(argout) tpfsdp_error **error ""
%typemap(out, noblock=1) tpfsdp_status {
  if ($1 < 0) { py::raise($1, py_error); SWIG_fail; }
  $result = SWIG_Py_Void();
}
%define PY_POLL(F)
%typemap(out, noblock=1) tpfsdp_status tpfsdp_##F {
  if ($1 < 0) { py::raise($1, py_error); SWIG_fail; }
  $result = PyBool_FromLong($1 == TPFSDP_OK);
}
%enddef
TPFSDP_EACH_POLL(PY_POLL)
%typemap(out, noblock=1) tpfsdp_status status { $result = PyLong_FromLong($1); } /* a record's member */

/* Numbers and names. */
%define PY_OUT(TYPE, NAME, MAKE)
%typemap(in, numinputs=0, noblock=1) TYPE *NAME (TYPE out = 0) { $1 = ($1_ltype)&out; }
%typemap(argout, noblock=1) TYPE *NAME { $result = py::append($result, MAKE(*$1)); }
%enddef
PY_OUT(int64_t, out_count, PyLong_FromLongLong)
PY_OUT(const char *, out_name, PyUnicode_FromString)
%typemap(out, noblock=1) tpfsdp_bool { $result = PyBool_FromLong($1); }
%typemap(out, noblock=1) void *tpfsdp_handle_retain { $result = PyBool_FromLong($1 != nullptr); }

/* Handles. What a get function gives is borrowed, so it gets a reference of its own here: every handle that a function
 * returns is the caller's to release. Those in records stay borrowed. */
%define PY_HANDLE_OUT(X, NAME)
%typemap(in, numinputs=0, noblock=1) tpfsdp_##X **NAME (tpfsdp_##X *out = nullptr) { $1 = &out; }
%typemap(argout, noblock=1) tpfsdp_##X **NAME {
  if (py::is_getter("$symname")) tpfsdp_handle_retain(*$1);
  $result = py::append($result, SWIG_NewPointerObj(SWIG_as_voidptr(*$1), $*1_descriptor, 0));
}
%enddef
%define PY_HANDLE(X)
PY_HANDLE_OUT(X, out_##X)
%enddef
TPFSDP_EACH_HANDLE(PY_HANDLE)
PY_HANDLE_OUT(blob, out_text)
PY_HANDLE_OUT(blob, out_json)

/* A work is asked for by a flag: false is the form that is done on return. */
%typemap(in, noblock=1) tpfsdp_work **out_work (tpfsdp_work *out = nullptr, int wanted) {
  wanted = PyObject_IsTrue($input);
  if (wanted < 0) SWIG_fail;
  $1 = wanted ? &out : nullptr;
}
%typemap(argout, noblock=1) tpfsdp_work **out_work {
  if ($1) $result = py::append($result, SWIG_NewPointerObj(SWIG_as_voidptr(*$1), $*1_descriptor, 0));
}

/* Bytes are copied; a view is (address, size_bytes, shape, dtype, device_type, device_id, epoch, read_only). */
%typemap(in, numinputs=0, noblock=1) (const void **out_data, int64_t *out_size_bytes)
    (const void *data = nullptr, int64_t size = 0) { $1 = ($1_ltype)&data; $2 = &size; }
%typemap(argout, noblock=1) (const void **out_data, int64_t *out_size_bytes) {
  $result = py::append($result, PyBytes_FromStringAndSize((const char *)*$1, (Py_ssize_t)*$2));
}
%typemap(in, numinputs=0, noblock=1) tpfsdp_view *out_view (tpfsdp_view view) { $1 = &view; }
%typemap(argout, noblock=1) tpfsdp_view *out_view { $result = py::append($result, py::from_view(*$1)); }

/* Arrays in records, as tuples. */
%inline %{
PyObject *int64_tuple(const int64_t *items, int64_t count) { return py::to_tuple(items, count, PyLong_FromLongLong); }
PyObject *int32_tuple(const int32_t *items, int64_t count) { return py::to_tuple(items, count, PyLong_FromLong); }
PyObject *name_tuple(const char *const *items, int64_t count) {
  return py::to_tuple(items, count, PyUnicode_FromString);
}
void set_error_factory(PyObject *factory) { py::set_error_factory(factory); }
%}
