/* A program outside the tree: the installed headers and library are all it has. */
#include <stdio.h>
#include <tpfsdp/tpfsdp.h>

int main(void) {
  tpfsdp_error *error = NULL;
  if (tpfsdp_version_require(TPFSDP_VERSION_NUMBER, &error) < 0) {
    fprintf(stderr, "%s\n", tpfsdp_error_message(error));
    tpfsdp_handle_release(error);
    return 1;
  }
  puts(tpfsdp_version_text());
  return 0;
}
