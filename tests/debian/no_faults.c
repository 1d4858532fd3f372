/* Answers the one question that Mesa's device without hardware (libfreedreno_noop_drm_shim.so) does
 * not: how often the GPU has faulted. rusticl asks after each flush, and takes no answer for a
 * device that is lost. To be preloaded in front of the shim, which does all else.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

/* As in the kernel's msm_drm.h: type 'd', DRM_COMMAND_BASE + DRM_MSM_SUBMITQUEUE_QUERY. */
enum { TYPE = 'd', SUBMITQUEUE_QUERY = 0x40 + 0x0c };
struct query {
  uint64_t data; /* where the answer goes */
  uint32_t id, param, len, pad;
};

typedef int (*ioctl_function)(int, unsigned long, ...);

int ioctl(int file, unsigned long request, ...) {
  static ioctl_function next;
  if (next == NULL) next = (ioctl_function)dlsym(RTLD_NEXT, "ioctl");
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  if (((request >> 8) & 0xff) != TYPE || (request & 0xff) != SUBMITQUEUE_QUERY)
    return next(file, request, argument);
  struct query *query = argument;
  memset((void *)(uintptr_t)query->data, 0, query->len);
  return 0;
}
