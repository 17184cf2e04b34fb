/* SPDX-License-Identifier: Apache-2.0
 * What goes in: strings, sequences with their counts, memory described by tuples, and objects that keep memory alive.
 * None is NULL; the library says where that is not allowed. */

/* Strings are borrowed from the str. A record keeps the pointer: whoever sets a member keeps the str alive. */
%typemap(in, noblock=1) const char * {
  $1 = $input == Py_None ? nullptr : const_cast<char *>(PyUnicode_AsUTF8AndSize($input, nullptr));
  if (!$1 && $input != Py_None) SWIG_fail;
}
%typemap(freearg) const char * ""
%typemap(memberin, noblock=1) const char * { $1 = $input; }

/* Sequences. */
%define PY_SEQUENCE(POINTER, ITEM, COUNT, CONVERT)
%typemap(in, noblock=1) (POINTER, COUNT) (std::vector<ITEM> items) {
  if ($input != Py_None && !py::to_vector($input, items, CONVERT)) SWIG_fail;
  $1 = $input == Py_None ? nullptr : ($1_ltype)items.data();
  $2 = ($2_ltype)items.size();
}
%typemap(freearg) (POINTER, COUNT) ""
%enddef
PY_SEQUENCE(const int64_t *counts, int64_t, int64_t count_count, py::to_int64)
PY_SEQUENCE(const int64_t *shape, int64_t, int32_t ndim, py::to_int64)
PY_SEQUENCE(const int32_t *sizes, int32_t, int64_t size_count, py::to_int32)
PY_SEQUENCE(const char *const *names, const char *, int64_t name_count, py::to_name)

%{
template <class T>
struct HandleConverter {
  swig_type_info *type;
  bool operator()(PyObject *object, T *&out) const {
    void *pointer = nullptr;
    if (!SWIG_IsOK(SWIG_ConvertPtr(object, &pointer, type, 0))) {
      PyErr_Format(PyExc_TypeError, "a sequence of %s is needed", type->str ? type->str : type->name);
      return false;
    }
    out = static_cast<T *>(pointer);
    return true;
  }
};
%}
%define PY_HANDLE_SEQUENCE(X)
PY_SEQUENCE(tpfsdp_##X *const *X##s, tpfsdp_##X *, int64_t X##_count,
            HandleConverter<tpfsdp_##X>{$descriptor(tpfsdp_##X *)})
/* In a record: the address of an array of handles that the caller keeps. */
%typemap(in, noblock=1) tpfsdp_##X *const * {
  $1 = static_cast<$1_ltype>($input == Py_None ? nullptr : PyLong_AsVoidPtr($input));
  if (PyErr_Occurred()) SWIG_fail;
}
%enddef
PY_HANDLE_SEQUENCE(module)
PY_HANDLE_SEQUENCE(param)
PY_HANDLE_SEQUENCE(group)

/* Memory: (address, size_bytes, shape, dtype, strides or None, read_only), on the CPU. */
%typemap(in, noblock=1) const tpfsdp_view * (py::ViewArgument view) {
  if (!view.set($input)) SWIG_fail;
  $1 = const_cast<$1_ltype>(view.get());
}
/* CPU memory has no streams. */
%typemap(in, numinputs=0, noblock=1) const tpfsdp_stream *stream { $1 = nullptr; }
/* Any object: it lives until the library drops it. */
%typemap(in, noblock=1) const tpfsdp_owner *owner (tpfsdp_owner owner) {
  if ($input == Py_None) {
    $1 = nullptr;
  } else {
    Py_INCREF($input);
    owner.user = $input;
    owner.drop = py::drop;
    $1 = &owner;
  }
}
