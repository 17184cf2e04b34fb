/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

enum { MOST_RANKS = 1024, USAGE_ERROR = 2 };

static const char help[] =
    "usage: tpfsdp-run [-n N] [--restarts K] [--grace SECONDS] [--] PROGRAM [ARG...]\n"
    "Starts PROGRAM as N ranks on this machine.\n"
    "\n"
    "  -n N             number of ranks, 1 to 1024 (default 1)\n"
    "  --restarts K     after a failure stop all ranks and start them again, at most K times (default 0)\n"
    "  --grace SECONDS  how long ranks may take to end by themselves when one has failed, or after a signal, before\n"
    "                   SIGTERM, and 2 s later SIGKILL (default 5)\n"
    "  --help, --version\n"
    "\n"
    "Each rank has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TPFSDP_STORE (where ranks meet: a private\n"
    "directory, removed at the end), TPFSDP_RUN_ID and TPFSDP_RESTART_COUNT in its environment, and a process group\n"
    "of its own, which is killed when the rank ends. Standard output goes through as it is; lines of the standard\n"
    "error are marked with their rank. Rank 0 reads the standard input, unless that is a terminal; the others read\n"
    "nothing.\n"
    "SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks, a second SIGINT kills them; SIGUSR1, SIGUSR2,\n"
    "SIGTSTP and SIGCONT are passed on too.\n"
    "\n"
    "Exit code: 0 if all ranks ended with 0; that of the rank that failed first, 128 + N if signal N killed it;\n"
    "128 + N after signal N to this program; 127 if PROGRAM was not found, 126 if it could not be started; 2 if the\n"
    "command line was wrong.\n";

_Noreturn static void refuse(const char *option, const char *text, const char *wanted) {
  fprintf(stderr, "tpfsdp-run: %s is \"%s\"; it is %s\n", option, text, wanted);
  exit(USAGE_ERROR);
}

static int read_count(const char *option, const char *text, int least, int most, const char *wanted) {
  char *end;
  errno = 0;
  const long value = strtol(text, &end, 10);
  if (end == text || *end || errno || value < least || value > most) refuse(option, text, wanted);
  return (int)value;
}

static double read_seconds(const char *option, const char *text) {
  char *end;
  const double value = strtod(text, &end);
  if (!*text || strspn(text, "0123456789.") != strlen(text) || *end || value > 86400)
    refuse(option, text, "a number of seconds, 0 to 86400");
  return value;
}

static struct options read_options(int argc, char **argv) {
  enum { RESTARTS = 256, GRACE, VERSION };
  static const struct option known[] = {{"restarts", required_argument, NULL, RESTARTS},
                                        {"grace", required_argument, NULL, GRACE},
                                        {"help", no_argument, NULL, 'h'},
                                        {"version", no_argument, NULL, VERSION},
                                        {NULL, 0, NULL, 0}};
  struct options options = {.ranks = 1, .grace_s = 5};
  int option;
  /* "+": the first word that is no option is PROGRAM, what follows is its own. */
  while ((option = getopt_long(argc, argv, "+n:h", known, NULL)) != -1) {
    switch (option) {
      case 'n': options.ranks = read_count("-n", optarg, 1, MOST_RANKS, "a number of ranks, 1 to 1024"); break;
      case RESTARTS:
        options.restarts = read_count("--restarts", optarg, 0, INT_MAX, "a number of restarts, at least 0");
        break;
      case GRACE: options.grace_s = read_seconds("--grace", optarg); break;
      case 'h': fputs(help, stdout); exit(fflush(stdout) == 0 ? 0 : 1);
      case VERSION: puts("tpfsdp-run " TPFSDP_RUN_VERSION); exit(fflush(stdout) == 0 ? 0 : 1);
      default: fputs("tpfsdp-run: --help says what it takes\n", stderr); exit(USAGE_ERROR);
    }
  }
  options.program = argv + optind;
  if (!*options.program) {
    fputs("tpfsdp-run: no PROGRAM was given; --help says what it takes\n", stderr);
    exit(USAGE_ERROR);
  }
  return options;
}

/* Descriptors 0, 1 and 2 exist, so that none of ours gets such a number. */
static void open_standard_descriptors(void) {
  int fd;
  while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO) fcntl(fd, F_SETFD, 0);
  if (fd >= 0) close(fd);
}

static int make_run_id(char text[33]) {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return -1;
  for (size_t i = 0; i < sizeof random; ++i) snprintf(text + 2 * i, 3, "%02x", random[i]);
  return 0;
}

int main(int argc, char **argv) {
  open_standard_descriptors();
  const struct options options = read_options(argc, argv);
  char run_id[33];
  const int signals = signals_open();
  output_open();
  /* What ranks leave behind becomes our child, so that it can be waited for. */
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  struct result result = {.code = 126};
  if (signals < 0 || make_run_id(run_id) != 0) {
    say("cannot start: %s", strerror(errno));
    output_flush();
    return result.code;
  }
  for (int restart = 0;; ++restart) {
    struct keeper keeper;
    if (keeper_start(&keeper, options.ranks) != 0) break;
    result = run_attempt(&(struct start){&options, run_id, restart, keeper.kept}, signals);
    keeper_end(&keeper);
    if (!result.is_failure || restart == options.restarts) break;
    say("restart %d of %d", restart + 1, options.restarts);
  }
  output_flush();
  return result.code;
}
