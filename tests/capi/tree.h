/* SPDX-License-Identifier: Apache-2.0
 * A context of one rank and a small tree on it: root { a { w (3, 2), b (2) } }. */
#ifndef TPFSDP_TESTS_CAPI_TREE_H
#define TPFSDP_TESTS_CAPI_TREE_H

#include "check.h"

typedef struct tree {
  tpfsdp_context *context;
  tpfsdp_module *root;
  tpfsdp_module *a;
  tpfsdp_param *w;
  tpfsdp_param *b;
  float w_values[6];
  float b_values[2];
} tree;

static inline tpfsdp_param *tree_param(tpfsdp_module *owner, const char *name, float *values, const int64_t *shape,
                                       int32_t ndim) {
  tpfsdp_view view;
  tpfsdp_param *param = NULL;
  CHECK_OK(tpfsdp_tensor_view_init(&view, values, TPFSDP_DTYPE_F32, shape, ndim, &error));
  CHECK_OK(tpfsdp_param_create(&view, 1, &param, &error));
  CHECK_OK(tpfsdp_module_register_parameter(owner, name, param, &error));
  return param;
}

static inline void tree_make(tree *t) {
  static const int64_t w_shape[2] = {3, 2}, b_shape[1] = {2};
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  int i;
  options.world_size = 1;
  for (i = 0; i < 6; ++i) t->w_values[i] = (float)i;
  for (i = 0; i < 2; ++i) t->b_values[i] = (float)(10 + i);
  CHECK_OK(tpfsdp_context_create(&options, &t->context, &error));
  CHECK_OK(tpfsdp_module_create(t->context, NULL, &t->root, &error));
  CHECK_OK(tpfsdp_module_create(t->context, NULL, &t->a, &error));
  CHECK_OK(tpfsdp_module_add_module(t->root, "a", t->a, &error));
  t->w = tree_param(t->a, "w", t->w_values, w_shape, 2);
  t->b = tree_param(t->a, "b", t->b_values, b_shape, 1);
}

static inline void tree_shard(tree *t) {
  CHECK_OK(tpfsdp_fully_shard(&t->a, 1, NULL, NULL, &error));
  CHECK_OK(tpfsdp_fully_shard(&t->root, 1, NULL, NULL, &error));
}

static inline void tree_free(tree *t) {
  tpfsdp_handle_release(t->w);
  tpfsdp_handle_release(t->b);
  tpfsdp_handle_release(t->a);
  tpfsdp_handle_release(t->root);
  CHECK_OK(tpfsdp_context_shutdown(t->context, &error));
  tpfsdp_handle_release(t->context);
}

#endif
