/* SPDX-License-Identifier: Apache-2.0
 * DLPack capsules of both kinds. A capsule that nobody takes is freed by its own destructor: it hands the structure
 * back to the library, which runs the deleter when it lets go. */
%define PY_DLPACK(STRUCT, NAME, IMPORT)
%{
static void destroy_##STRUCT(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, NAME)) return; /* taken: renamed to used_... */
  auto *managed = static_cast<struct STRUCT *>(PyCapsule_GetPointer(capsule, NAME));
  tpfsdp_tensor *tensor = nullptr;
  if (IMPORT(managed, &tensor, nullptr) == TPFSDP_OK) tpfsdp_handle_release(tensor);
}
%}
%typemap(in, numinputs=0, noblock=1) STRUCT **out_managed (struct STRUCT *managed = nullptr) { $1 = &managed; }
%typemap(argout, noblock=1) STRUCT **out_managed {
  $result = py::append($result, PyCapsule_New(*$1, NAME, destroy_##STRUCT));
}
%typemap(in, noblock=1) STRUCT *managed {
  $1 = static_cast<struct STRUCT *>(PyCapsule_GetPointer($input, NAME));
  if (!$1) SWIG_fail;
}
/* Runs after success only: on failure the capsule is still the caller's. */
%typemap(argout, noblock=1) STRUCT *managed { PyCapsule_SetName($input, "used_" NAME); }
%enddef
PY_DLPACK(DLManagedTensorVersioned, "dltensor_versioned", tpfsdp_tensor_from_dlpack)
PY_DLPACK(DLManagedTensor, "dltensor", tpfsdp_tensor_from_dlpack_legacy)
