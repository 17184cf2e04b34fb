// SPDX-License-Identifier: Apache-2.0
// What the Python typemaps call: exceptions, tuples, the interpreter lock on threads of the library. Only functions of
// the limited API of Python 3.11.
#pragma once

#include <Python.h>
#include <tpfsdp/tpfsdp.h>

#include <cstring>
#include <vector>

namespace tpfsdp::python {

// Adds a result to those there are: nothing, one, then a tuple. SWIG's own changed its meaning in 4.3. NULL is failure.
inline PyObject *append(PyObject *result, PyObject *item) {
  if (!result || !item) {
    Py_XDECREF(result);
    Py_XDECREF(item);
    return nullptr;
  }
  if (result == Py_None) {
    Py_DECREF(result);
    return item;
  }
  PyObject *head = PyTuple_Check(result) ? result : Py_BuildValue("(N)", result);
  PyObject *tail = Py_BuildValue("(N)", item);
  PyObject *all = head && tail ? PySequence_Concat(head, tail) : nullptr;
  Py_XDECREF(head);
  Py_XDECREF(tail);
  return all;
}

// Of names as the wrappers know them, with the prefix stripped.
inline bool is_getter(const char *function) { return std::strstr(function, "_get_") != nullptr; }

template <class T, class Make>
PyObject *to_tuple(const T *items, int64_t count, Make make) {
  PyObject *tuple = PyTuple_New(items ? static_cast<Py_ssize_t>(count) : 0);
  for (Py_ssize_t i = 0; tuple && items && i < static_cast<Py_ssize_t>(count); i++) {
    PyObject *item = make(items[i]);
    if (!item) {
      Py_DECREF(tuple);
      return nullptr;
    }
    PyTuple_SetItem(tuple, i, item);
  }
  return tuple;
}

// ---- Sequences in ----

inline bool to_int64(PyObject *object, int64_t &out) {
  out = PyLong_AsLongLong(object);
  return !PyErr_Occurred();
}
inline bool to_int32(PyObject *object, int32_t &out) {
  const long long wide = PyLong_AsLongLong(object);
  out = static_cast<int32_t>(wide);
  if (PyErr_Occurred()) return false;
  if (wide == out) return true;
  PyErr_SetString(PyExc_OverflowError, "the number does not fit in 32 bits");
  return false;
}
inline bool to_name(PyObject *object, const char *&out) {
  out = PyUnicode_AsUTF8AndSize(object, nullptr);
  return out != nullptr;
}

// The items are borrowed from the sequence, which lives as long as the call.
template <class T, class Convert>
bool to_vector(PyObject *sequence, std::vector<T> &out, Convert convert) {
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return false;
  out.resize(static_cast<size_t>(count) + 1);  // so that data() of an empty one is not NULL
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *item = PySequence_GetItem(sequence, i);
    const bool ok = item && convert(item, out[static_cast<size_t>(i)]);
    Py_XDECREF(item);
    if (!ok) return false;
  }
  out.resize(static_cast<size_t>(count));
  return true;
}

// ---- Memory ----

class ViewArgument {
 public:
  // From (address, size_bytes, shape, dtype, strides or None, read_only), or None.
  bool set(PyObject *object) {
    if (object == Py_None) return true;
    unsigned long long address = 0;
    long long size = 0;
    int dtype = 0;
    int read_only = 0;
    PyObject *shape = nullptr, *strides = nullptr;
    if (!PyTuple_Check(object)) {
      PyErr_SetString(PyExc_TypeError,
                      "memory is described by (address, size_bytes, shape, dtype, strides, read_only)");
      return false;
    }
    if (!PyArg_ParseTuple(object, "KLOiOp", &address, &size, &shape, &dtype, &strides, &read_only) ||
        !to_vector(shape, shape_, to_int64) || (strides != Py_None && !to_vector(strides, strides_, to_int64)))
      return false;
    if (!strides_.empty() && strides_.size() != shape_.size()) {
      PyErr_SetString(PyExc_ValueError, "shape and strides differ in length");
      return false;
    }
    view_.data = reinterpret_cast<void *>(address);
    view_.size_bytes = size;
    view_.shape = shape_.empty() ? nullptr : shape_.data();
    view_.strides = strides_.empty() ? nullptr : strides_.data();
    view_.read_only = read_only;
    view_.ndim = static_cast<int32_t>(shape_.size());
    view_.dtype = dtype;
    view_.device_type = TPFSDP_DEVICE_CPU;
    given_ = true;
    return true;
  }
  const tpfsdp_view *get() const { return given_ ? &view_ : nullptr; }

 private:
  tpfsdp_view view_{};
  std::vector<int64_t> shape_, strides_;
  bool given_ = false;
};

inline PyObject *from_view(const tpfsdp_view &view) {
  PyObject *shape = to_tuple(view.shape, view.ndim, PyLong_FromLongLong);
  if (!shape) return nullptr;
  return Py_BuildValue("(KLNiiiLN)", reinterpret_cast<unsigned long long>(view.data),
                       static_cast<long long>(view.size_bytes), shape, static_cast<int>(view.dtype),
                       static_cast<int>(view.device_type), static_cast<int>(view.device_id),
                       static_cast<long long>(view.epoch), PyBool_FromLong(view.read_only));
}

// ---- The interpreter lock, on any thread ----

// The exception that the last callback on this thread ended with.
inline thread_local PyObject *raised_in_callback = nullptr;

// A thread of the library that has called Python stays known to it: making a thread state anew for each callback costs
// 40 times the call. Only a destructor of C++ runs early enough at the thread's end to take the state down.
class Attachment {
 public:
  Attachment() = default;
  Attachment(const Attachment &) = delete;
  Attachment &operator=(const Attachment &) = delete;
  ~Attachment() {
    if (!state_ || !Py_IsInitialized()) return;
    PyEval_RestoreThread(state_);
    Py_CLEAR(raised_in_callback);
    PyThreadState_Clear(state_);
    PyEval_SaveThread();
    PyThreadState_Delete(state_);
  }
  void attach() {
    if (state_ || PyGILState_GetThisThreadState()) return;
    PyGILState_Ensure();
    state_ = PyEval_SaveThread();
  }

 private:
  PyThreadState *state_ = nullptr;
};

class Gil {
 public:
  Gil() {
    thread_local Attachment attachment;
    attachment.attach();
    state_ = PyGILState_Ensure();
  }
  Gil(const Gil &) = delete;
  Gil &operator=(const Gil &) = delete;
  ~Gil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

inline void drop(void *user) {
  if (!Py_IsInitialized()) return;
  Gil gil;
  Py_DECREF(static_cast<PyObject *>(user));
}

// Calls @p callable with @p args (a new reference, or NULL). None is OK, a number a status, an exception CALLBACK.
inline tpfsdp_status call(PyObject *callable, PyObject *args) {
  Py_CLEAR(raised_in_callback);
  PyObject *result = args ? PyObject_CallFunctionObjArgs(callable, args, nullptr) : nullptr;
  Py_XDECREF(args);
  tpfsdp_status status = TPFSDP_OK;
  if (result && result != Py_None) status = static_cast<tpfsdp_status>(PyLong_AsLong(result));
  Py_XDECREF(result);
  if (!PyErr_Occurred()) return status;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  raised_in_callback = value;
  return TPFSDP_ERR_CALLBACK;
}

// ---- Exceptions ----

inline PyObject *error_factory = nullptr;

inline void set_error_factory(PyObject *factory) {
  Py_INCREF(factory);
  Py_XDECREF(error_factory);
  error_factory = factory;
}

// A new exception, or NULL with one set.
inline PyObject *make_exception(tpfsdp_status status, const tpfsdp_error *error) {
  tpfsdp_error_info info = TPFSDP_INIT(tpfsdp_error_info);
  if (!error || tpfsdp_error_get_info(error, &info) < 0) {
    info.status = status;
    info.error_class = tpfsdp_error_status_class(status);
    info.rank = -1;
    info.sequence = -1;
    info.message = tpfsdp_error_status_name(status);
    info.operation = info.unit = info.group = info.backend = "";
  }
  const tpfsdp_error *behind = error ? tpfsdp_error_get_cause(error) : nullptr;
  PyObject *cause = nullptr;
  if (behind) {
    cause = make_exception(status, behind);
    if (!cause) return nullptr;
  } else {
    cause = Py_None;
    Py_INCREF(cause);
  }
  if (!error_factory) {
    Py_DECREF(cause);
    return PyObject_CallFunction(PyExc_RuntimeError, "s", info.message);
  }
  return PyObject_CallFunction(
      error_factory, "siiiiLissssN", info.message, static_cast<int>(info.status), static_cast<int>(info.error_class),
      static_cast<int>(info.rank), static_cast<int>(info.backend_code), static_cast<long long>(info.sequence),
      static_cast<int>(info.is_sticky), info.operation, info.unit, info.group, info.backend, cause);
}

// Raises what the library reports. Where a callback of this thread raised, its own exception comes first, from the
// library's.
inline void raise(tpfsdp_status status, tpfsdp_error *error) {
  PyObject *exception = make_exception(status, error);
  tpfsdp_handle_release(error);
  if (!exception) return;
  if ((status == TPFSDP_ERR_CALLBACK || status == TPFSDP_ERR_CANCELLED) && raised_in_callback) {
    PyObject *own = raised_in_callback;
    raised_in_callback = nullptr;
    PyException_SetCause(own, exception);
    exception = own;
  }
  PyErr_SetObject(PyExceptionInstance_Class(exception), exception);
  Py_DECREF(exception);
}

}  // namespace tpfsdp::python
