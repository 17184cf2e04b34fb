/* SPDX-License-Identifier: Apache-2.0
 * Lines of all ranks go through one bounded queue. While it is full no rank is read, so ranks that write more wait as
 * they would without us. When nothing was taken from it for PATIENCE_S, lines are left out and counted instead: a
 * reader that stands still must not hold up the ranks, or this program, for ever. */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  QUEUE_BYTES = 256 * 1024,
  OWN_BYTES = 32 * 1024,  /* of the queue, for what this program says */
  ROOM_BYTES = 96 * 1024, /* what one read can add, and OWN_BYTES */
  READ_BYTES = 4096,
  WRITE_BYTES = 4096 /* a pipe takes that much whole or not at all */
};
#define PATIENCE_S 5.0

static struct {
  int fd; /* -1: nobody reads any more */
  int is_socket;
  size_t used;
  double moved_s; /* when the reader took something, or there was nothing to take */
  long lines;
  long left_out;
  char text[QUEUE_BYTES];
} out;

double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* O_NONBLOCK belongs to the open file, which the ranks' standard output may be: a pipe or a terminal is opened anew. */
void output_open(void) {
  struct stat about;
  out.fd = STDERR_FILENO;
  if (fstat(out.fd, &about) != 0) return;
  out.is_socket = S_ISSOCK(about.st_mode);
  if (!S_ISFIFO(about.st_mode) && !S_ISCHR(about.st_mode)) return;
  const int own = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (own >= 0) out.fd = own;
}

int output_poll_fd(void) { return out.used > 0 ? out.fd : -1; }
long output_lines(void) { return out.lines; }

static int is_stuck(void) { return out.used > 0 && now_s() - out.moved_s > PATIENCE_S; }
double output_deadline_s(void) { return out.used == 0 || is_stuck() ? INFINITY : out.moved_s + PATIENCE_S; }
int output_takes(void) { return out.used + ROOM_BYTES <= QUEUE_BYTES || is_stuck(); }

/* One write, up to a line's end, so that lines stay whole beside what ranks write to the same pipe. */
void output_write(void) {
  if (out.used == 0) return;
  size_t part = out.used;
  if (part > WRITE_BYTES) {
    const char *end = memrchr(out.text, '\n', WRITE_BYTES);
    part = end ? (size_t)(end - out.text) + 1 : WRITE_BYTES;
  }
  const ssize_t done = out.is_socket ? send(out.fd, out.text, part, MSG_DONTWAIT) : write(out.fd, out.text, part);
  if (done < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (done < 0) {
    out.fd = -1;
    out.used = 0;
    return;
  }
  out.used -= (size_t)done;
  memmove(out.text, out.text + done, out.used);
  out.moved_s = now_s();
  if (out.left_out > 0 && out.used + ROOM_BYTES <= QUEUE_BYTES) {
    say("%ld lines were left out here: nobody had read for %.0f s", out.left_out, PATIENCE_S);
    out.left_out = 0;
  }
}

void output_flush(void) {
  while (out.used > 0 && !is_stuck()) {
    struct pollfd reader = {.fd = out.fd, .events = POLLOUT};
    if (poll(&reader, 1, 100) > 0) output_write();
  }
}

static int put(size_t limit, const char *tag, const char *text, size_t size) {
  if (out.fd < 0) return 1;
  const size_t tag_size = strlen(tag);
  if (out.used + tag_size + size + 1 > limit) return 0;
  if (out.used == 0) out.moved_s = now_s();
  memcpy(out.text + out.used, tag, tag_size);
  memcpy(out.text + out.used + tag_size, text, size);
  out.used += tag_size + size + 1;
  out.text[out.used - 1] = '\n';
  return 1;
}

void say(const char *format, ...) {
  char text[4608];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  put(QUEUE_BYTES, "tpfsdp-run: ", text, strlen(text));
}

static void put_line(int rank, const char *text, size_t size) {
  char tag[16];
  snprintf(tag, sizeof tag, "[%d] ", rank);
  if (out.left_out > 0 || !put(QUEUE_BYTES - OWN_BYTES, tag, text, size)) ++out.left_out;
}

static void take_line(struct stream *stream, const char *text, size_t size) {
  put_line(stream->rank, text, size);
  const long slot = stream->lines++ % KEPT_LINES;
  const size_t kept = size < KEPT_BYTES ? size : KEPT_BYTES - 1;
  memcpy(stream->kept[slot], text, kept);
  stream->kept[slot][kept] = '\0';
  stream->place[slot] = out.lines++;
}

int stream_read(struct stream *stream) {
  const size_t room = LINE_BYTES - stream->used;
  const ssize_t got = read(stream->fd, stream->line + stream->used, room < READ_BYTES ? room : READ_BYTES);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  if (got == 0) return -1;
  stream->used += (size_t)got;
  char *start = stream->line, *const end = stream->line + stream->used;
  for (char *stop; (stop = memchr(start, '\n', (size_t)(end - start))); start = stop + 1)
    take_line(stream, start, (size_t)(stop - start));
  if (start == stream->line && stream->used == LINE_BYTES) {
    take_line(stream, start, LINE_BYTES);
    start = end;
  }
  stream->used = (size_t)(end - start);
  memmove(stream->line, start, stream->used);
  return (int)got;
}

void stream_close(struct stream *stream) {
  if (stream->fd < 0) return;
  if (stream->used > 0) take_line(stream, stream->line, stream->used);
  stream->used = 0;
  close(stream->fd);
  stream->fd = -1;
}

int stream_kept(const struct stream *stream) { return (int)(stream->lines < KEPT_LINES ? stream->lines : KEPT_LINES); }

int stream_is_last(const struct stream *stream) {
  const int kept = stream_kept(stream);
  return kept == 0 || stream->place[(stream->lines - kept) % KEPT_LINES] == out.lines - kept;
}

void stream_repeat(const struct stream *stream) {
  for (long line = stream->lines - stream_kept(stream); line < stream->lines; ++line) {
    const char *text = stream->kept[line % KEPT_LINES];
    put_line(stream->rank, text, strlen(text));
  }
}
