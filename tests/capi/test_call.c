/* SPDX-License-Identifier: Apache-2.0
 * Call mode through the C ABI: methods, hooks and their order, payloads, failures, forward methods. */
#include "check.h"
#include "tree.h"

static char log_text[512];
static int drops;
static void count_drop(void *user) {
  (void)user;
  ++drops;
}

/* "pre1 " for the hook whose user is "pre1"; the method of a call whose payload is the text "fail" fails. */
static tpfsdp_status note(void *user, const tpfsdp_module_args *args) {
  CHECK_EQ(args->struct_size, sizeof *args);
  strncat(log_text, (const char *)user, sizeof log_text - strlen(log_text) - 1);
  strncat(log_text, args->failed ? "! " : " ", sizeof log_text - strlen(log_text) - 1);
  return args->payload && strcmp((const char *)args->payload, (const char *)user) == 0 ? -7 : TPFSDP_OK;
}

static void expect_log(const char *expected) {
  CHECK_TEXT(log_text, expected);
  log_text[0] = '\0';
}

static tpfsdp_module_callback callback_of(const char *name) {
  const tpfsdp_module_callback callback = {note, (void *)(uintptr_t)name, count_drop};
  return callback;
}

static tpfsdp_hook *add_hook(tpfsdp_module *module, tpfsdp_hook_kind kind, const char *name, int prepend, int always) {
  tpfsdp_hook_options options = TPFSDP_INIT(tpfsdp_hook_options);
  options.prepend = prepend ? TPFSDP_TOGGLE_ON : TPFSDP_TOGGLE_DEFAULT;
  options.always_call = always ? TPFSDP_TOGGLE_ON : TPFSDP_TOGGLE_OFF;
  const tpfsdp_module_callback callback = callback_of(name);
  tpfsdp_hook *hook = NULL;
  CHECK_OK(tpfsdp_module_register_hook(module, kind, &callback, &options, &hook, &error));
  return hook;
}

static void set_method(tpfsdp_module *module, const char *name, const char *noted) {
  const tpfsdp_module_callback callback = callback_of(noted);
  CHECK_OK(tpfsdp_module_set_method(module, name, &callback, &error));
}

static char fails_forward[] = "forward", fails_pre1[] = "pre1", fails_bpost[] = "bpost";

static void test_order_of_hooks(tpfsdp_context *context) {
  tpfsdp_module *module = NULL;
  CHECK_OK(tpfsdp_module_create(context, NULL, &module, &error));
  CHECK_FAILS(tpfsdp_module_call(module, NULL, &error), TPFSDP_ERR_NOT_FOUND, "has no method \"forward\"");
  set_method(module, "forward", "forward");
  set_method(module, "backward", "backward");
  tpfsdp_hook *const pre1 = add_hook(module, TPFSDP_HOOK_FORWARD_PRE, "pre1", 0, 0);
  tpfsdp_hook *const pre2 = add_hook(module, TPFSDP_HOOK_FORWARD_PRE, "pre2", 0, 0);
  tpfsdp_hook *const pre0 = add_hook(module, TPFSDP_HOOK_FORWARD_PRE, "pre0", 1, 0);
  tpfsdp_hook *const post = add_hook(module, TPFSDP_HOOK_FORWARD, "post", 0, 0);
  tpfsdp_hook *const always = add_hook(module, TPFSDP_HOOK_FORWARD, "always", 0, 1);
  tpfsdp_hook *const bpre = add_hook(module, TPFSDP_HOOK_BACKWARD_PRE, "bpre", 0, 0);
  tpfsdp_hook *const bpost = add_hook(module, TPFSDP_HOOK_BACKWARD, "bpost", 0, 0);

  CHECK_OK(tpfsdp_module_call(module, NULL, &error));
  expect_log("pre0 pre1 pre2 forward post always ");
  CHECK_OK(tpfsdp_module_backward(module, NULL, &error));
  expect_log("bpre backward bpost ");
  /* Manual mode runs the same hooks. */
  CHECK_OK(tpfsdp_module_pre_forward(module, &error));
  CHECK_OK(tpfsdp_module_post_forward(module, &error));
  CHECK_OK(tpfsdp_module_pre_backward(module, &error));
  CHECK_OK(tpfsdp_module_post_backward(module, &error));
  expect_log("pre0 pre1 pre2 post always bpre bpost ");
  CHECK_OK(tpfsdp_module_pre_forward(module, &error));
  CHECK_OK(tpfsdp_module_fail_forward(module, &error));
  expect_log("pre0 pre1 pre2 always! ");

  CHECK_FAILS(tpfsdp_module_call(module, fails_forward, &error), TPFSDP_ERR_CALLBACK,
              "method \"forward\" of module \"\" failed with status -7");
  expect_log("pre0 pre1 pre2 forward always! ");
  CHECK_FAILS(tpfsdp_module_call(module, fails_pre1, &error), TPFSDP_ERR_CALLBACK,
              "forward pre-hook of module \"\" failed with status -7");
  expect_log("pre0 pre1 always! ");
  CHECK_FAILS(tpfsdp_module_backward(module, fails_bpost, &error), TPFSDP_ERR_CALLBACK, "backward hook of module");
  expect_log("bpre backward bpost ");

  CHECK_OK(tpfsdp_hook_remove(pre1, &error));
  CHECK_OK(tpfsdp_hook_remove(pre1, &error));
  tpfsdp_handle_release(pre2); /* the hook stays */
  CHECK_OK(tpfsdp_module_call(module, NULL, &error));
  expect_log("pre0 pre2 forward post always ");

  set_method(module, "encode", "encode");
  CHECK_OK(tpfsdp_module_call_method(module, "encode", NULL, &error));
  expect_log("encode ");
  CHECK_OK(tpfsdp_module_set_method(module, "encode", NULL, &error));
  CHECK_FAILS(tpfsdp_module_call_method(module, "encode", NULL, &error), TPFSDP_ERR_NOT_FOUND, "\"encode\"");

  drops = 0;
  tpfsdp_handle_release(module);
  CHECK_OK(tpfsdp_hook_remove(pre0, &error)); /* its module has ended */
  tpfsdp_handle_release(pre0);
  tpfsdp_handle_release(pre1);
  tpfsdp_handle_release(post);
  tpfsdp_handle_release(always);
  tpfsdp_handle_release(bpre);
  tpfsdp_handle_release(bpost);
  CHECK_EQ(drops, 9); /* 7 hooks and 2 methods */
}

static void test_wrong_calls(tpfsdp_context *context) {
  tpfsdp_module *module = NULL;
  CHECK_OK(tpfsdp_module_create(context, NULL, &module, &error));
  const tpfsdp_module_callback callback = callback_of("x");
  drops = 0;
  CHECK_FAILS(tpfsdp_module_register_hook(module, 0, &callback, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "kind is 0");
  CHECK_FAILS(tpfsdp_module_register_hook(module, 5, &callback, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "kind is 5");
  tpfsdp_hook_options options = TPFSDP_INIT(tpfsdp_hook_options);
  options.always_call = TPFSDP_TOGGLE_ON;
  CHECK_FAILS(tpfsdp_module_register_hook(module, TPFSDP_HOOK_BACKWARD, &callback, &options, NULL, &error),
              TPFSDP_ERR_INVALID_ARGUMENT, "always_call is for");
  CHECK_FAILS(tpfsdp_module_set_method(module, "", &callback, &error), TPFSDP_ERR_INVALID_ARGUMENT, "name is empty");
  CHECK_EQ(drops, 4);
  CHECK_FAILS(tpfsdp_module_register_hook(module, 1, NULL, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT,
              "callback is NULL");
  CHECK_FAILS(tpfsdp_module_call_method(module, NULL, NULL, &error), TPFSDP_ERR_INVALID_ARGUMENT, "name is NULL");
  CHECK_FAILS(tpfsdp_hook_remove((tpfsdp_hook *)module, &error), TPFSDP_ERR_INVALID_HANDLE, "tpfsdp_hook");
  tpfsdp_handle_release(module);
}

int main(void) {
  tpfsdp_context *context = NULL;
  CHECK_OK(tpfsdp_context_create(NULL, &context, &error));
  test_order_of_hooks(context);
  test_wrong_calls(context);
  tpfsdp_handle_release(context);
  return check_end();
}
