/* A layer of the OpenCL loader that makes PoCL's devices record launches.
 *
 *     OPENCL_LAYERS=./layer.so MODELD_TEST_RECORDINGS=qcom    -> cl_qcom_recordable_queues
 *     ... khr-fixed    -> cl_khr_command_buffer
 *     ... khr-linked   -> and cl_khr_command_buffer_mutable_dispatch, version 0.9.0
 *     ... khr          -> the same, version 0.9.5
 *
 * Launches that are recorded are kept and not run; a replay enqueues them in the driver below. The
 * layer is strict where drivers may be. Tests read the counters and set the failures: a status that
 * the next calls return. With MODELD_TEST_RECORDINGS_IDLE nothing reaches the driver
 * below, neither launches nor replays: what is left is what they cost before.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t Int;
typedef uint32_t Uint;
typedef uint64_t Ulong;
typedef void *Handle;

enum { SUCCESS = 0, INVALID_VALUE = -30, INVALID_QUEUE = -36, INVALID_OPERATION = -59 };
enum { INVALID_COMMAND_BUFFER = -1138, INVALID_COMMAND = -1141 };

/* Places in the loader's table of functions. */
enum {
  GET_DEVICE_INFO = 3, CREATE_QUEUE = 9,
  CREATE_KERNEL = 34, RELEASE_KERNEL = 37, SET_KERNEL_ARG = 38, GET_KERNEL_INFO = 39, FINISH = 47,
  ENQUEUE_KERNEL = 59, MARKER = 62, GET_FUNCTION = 107, CREATE_QUEUE_WITH_PROPERTIES = 123, TABLE = 256
};

static Handle below[TABLE], table[TABLE];

#define BELOW(type, place, ...) ((type(*)(__VA_ARGS__))below[place])

/* What tests read and set. */
int launches, replays, updates, living;
int fail_find, fail_new, fail_record, fail_end, fail_replay, fail_update, fail_finish;
unsigned longest = 128;

/* --- arguments of kernels, as they were set --- */

typedef struct { Handle kernel; Uint index; size_t size; int null; char value[16]; } Argument;
static Argument *arguments;
static size_t known;

static Argument *argument_of(Handle kernel, Uint index) {
  for (size_t i = 0; i < known; i++)
    if (arguments[i].kernel == kernel && arguments[i].index == index) return &arguments[i];
  return NULL;
}

static Int set_argument(Handle kernel, Uint index, size_t size, const void *value) {
  Int status = BELOW(Int, SET_KERNEL_ARG, Handle, Uint, size_t, const void *)(kernel, index, size,
                                                                             value);
  if (status) return status;
  Argument *found = argument_of(kernel, index);
  if (!found) {
    arguments = realloc(arguments, (known + 1) * sizeof *arguments);
    found = &arguments[known++];
  }
  *found = (Argument){kernel, index, size, value == NULL, {0}};
  if (value) memcpy(found->value, value, size < sizeof found->value ? size : sizeof found->value);
  return SUCCESS;
}

static void forget(Handle kernel) {
  size_t kept = 0;
  for (size_t i = 0; i < known; i++)
    if (arguments[i].kernel != kernel) arguments[kept++] = arguments[i];
  known = kept;
}

static Handle create_kernel(Handle program, const char *name, Int *status) {
  Handle kernel = BELOW(Handle, CREATE_KERNEL, Handle, const char *, Int *)(program, name, status);
  forget(kernel); /* one that was released may have had the same address */
  return kernel;
}

/* A kernel of its own with the same arguments: what is recorded does not follow later changes. */
static Handle copy_of(Handle kernel) {
  char name[256];
  Handle program;
  Int status;
  Int (*info)(Handle, Uint, size_t, void *, size_t *) = below[GET_KERNEL_INFO];
  info(kernel, 0x1190, sizeof name, name, NULL);
  info(kernel, 0x1194, sizeof program, &program, NULL);
  Handle copy = create_kernel(program, name, &status);
  for (size_t i = 0, end = known; i < end; i++) {
    Argument a = arguments[i];
    if (a.kernel == kernel) set_argument(copy, a.index, a.size, a.null ? NULL : a.value);
  }
  return copy;
}

/* --- recordings --- */

typedef struct { Handle kernel; Uint dimensions; size_t global[3], local[3]; int has_local; } Launch;
typedef struct { Handle queue; int ended, changeable; size_t count; Launch **launches; } Recording;

static Handle recordable; /* one queue of the kind at a time is enough for the tests */
static Recording *open;

static Int record(Recording *to, Handle kernel, Uint dimensions, const size_t *global,
                  const size_t *local) {
  if (to->ended) return INVALID_OPERATION;
  Launch *launch = calloc(1, sizeof *launch);
  launch->kernel = copy_of(kernel);
  launch->dimensions = dimensions;
  launch->has_local = local != NULL;
  memcpy(launch->global, global, dimensions * sizeof *global);
  if (local) memcpy(launch->local, local, dimensions * sizeof *local);
  to->launches = realloc(to->launches, (to->count + 1) * sizeof *to->launches);
  to->launches[to->count++] = launch;
  return SUCCESS;
}

static int idle(void) { return getenv("MODELD_TEST_RECORDINGS_IDLE") != NULL; }

static Int replay(Recording *of, Handle queue) {
  replays++;
  if (idle()) return SUCCESS;
  for (size_t i = 0; i < of->count; i++) {
    Launch *l = of->launches[i];
    Int status = BELOW(Int, ENQUEUE_KERNEL, Handle, Handle, Uint, const size_t *, const size_t *,
                       const size_t *, Uint, const Handle *, Handle *)(
        queue, l->kernel, l->dimensions, NULL, l->global, l->has_local ? l->local : NULL, 0, NULL,
        NULL);
    if (status) return status;
  }
  return SUCCESS;
}

static Recording *new_recording(Handle queue) {
  Recording *made = calloc(1, sizeof *made);
  made->queue = queue;
  living++;
  return made;
}

static Int release(Recording *of) {
  for (size_t i = 0; i < of->count; i++) {
    BELOW(Int, RELEASE_KERNEL, Handle)(of->launches[i]->kernel);
    free(of->launches[i]);
  }
  free(of->launches);
  free(of);
  living--;
  return SUCCESS;
}

/* --- cl_qcom_recordable_queues --- */

typedef struct { Uint launch, index; size_t size; const void *value; } QcomArgument;

static Recording *qcom_new(Handle queue, Int *status) {
  *status = fail_new ? fail_new : queue != recordable ? INVALID_QUEUE : SUCCESS;
  return *status ? NULL : (open = new_recording(queue));
}

static Int qcom_end(Recording *of) {
  if (fail_end) return fail_end;
  if (of != open || of->count > longest) return INVALID_OPERATION;
  of->ended = 1;
  open = NULL;
  return SUCCESS;
}

/* Changes hold for this replay only. */
static Int qcom_enqueue(Handle queue, Recording *of, size_t count, const QcomArgument *changes,
                        size_t offsets, const void *o, size_t globals, const void *g, size_t locals,
                        const void *l, Uint waits, const Handle *w, Handle *event) {
  (void)offsets, (void)o, (void)globals, (void)g, (void)locals, (void)l;
  (void)waits, (void)w, (void)event;
  if (fail_replay) return fail_replay;
  if (!of->ended || queue == recordable) return INVALID_OPERATION;
  Argument before[count ? count : 1];
  Int status = count && fail_update ? fail_update : SUCCESS;
  size_t done = 0;
  for (; done < count && !status; done++) {
    const QcomArgument *c = &changes[done];
    Argument *old = c->launch < of->count
                        ? argument_of(of->launches[c->launch]->kernel, c->index) : NULL;
    if (!old || old->size != c->size) { status = INVALID_VALUE; break; }
    before[done] = *old;
    status = set_argument(old->kernel, c->index, c->size, c->value);
  }
  updates += (int)count;
  if (!status) status = replay(of, queue);
  while (done--) {
    Argument *b = &before[done];
    set_argument(b->kernel, b->index, b->size, b->null ? NULL : b->value);
  }
  return status;
}

/* --- cl_khr_command_buffer and its layer --- */

typedef struct { Uint index; size_t size; const void *value; } KhrArgument;
typedef struct {
  Launch *command;
  Uint arguments, svm_arguments, infos, dimensions;
  const KhrArgument *list;
  const void *others[5]; /* null: nothing else changes */
} Config;
typedef struct { Uint type; const void *next; Config config; } LinkedConfig;
typedef struct { Uint type; const void *next; Uint count; const LinkedConfig *list; } BaseConfig;

static const char *kind(void) {
  const char *found = getenv("MODELD_TEST_RECORDINGS");
  return found ? found : "";
}
static int is_qcom(void) { return !strcmp(kind(), "qcom"); }
static int is_mutable(void) { return !strcmp(kind(), "khr") || !strcmp(kind(), "khr-linked"); }

static Recording *khr_create(Uint count, const Handle *queues, const Ulong *properties,
                             Int *status) {
  *status = fail_new ? fail_new : count != 1 ? INVALID_VALUE : SUCCESS;
  if (properties && properties[0] == 0x1293 && properties[1] == 2 && !is_mutable())
    *status = INVALID_VALUE;
  if (*status) return NULL;
  Recording *made = new_recording(queues[0]);
  made->changeable = properties != NULL;
  return made;
}

static Int khr_command(Recording *to, Handle queue, const Ulong *properties, Handle kernel,
                       Uint dimensions, const size_t *offset, const size_t *global,
                       const size_t *local, Uint waits, const Uint *points, Uint *point,
                       Launch **handle) {
  (void)offset, (void)points, (void)point;
  if (fail_record) return fail_record;
  if (queue || waits || (!is_mutable() && (handle || properties))) return INVALID_VALUE;
  Int status = record(to, kernel, dimensions, global, local);
  if (!status && handle) *handle = to->launches[to->count - 1];
  return status;
}

static Int khr_finalize(Recording *of) {
  if (fail_end) return fail_end;
  of->ended = 1;
  return SUCCESS;
}

static Int khr_enqueue(Uint count, const Handle *queues, Recording *of, Uint waits,
                       const Handle *w, Handle *event) {
  (void)queues, (void)waits, (void)w, (void)event;
  if (fail_replay) return fail_replay;
  if (count || !of->ended) return INVALID_OPERATION;
  return replay(of, of->queue);
}

static Int change(Recording *of, const Config *config) {
  size_t at = 0;
  while (at < of->count && of->launches[at] != config->command) at++;
  if (!of->changeable || at == of->count) return INVALID_COMMAND;
  if (config->svm_arguments || config->infos || config->dimensions) return INVALID_VALUE;
  for (Uint i = 0; i < config->arguments; i++) {
    const KhrArgument *a = &config->list[i];
    Int status = set_argument(config->command->kernel, a->index, a->size, a->value);
    if (status) return status;
    updates++;
  }
  return SUCCESS;
}

static Int khr_update(Recording *of, Uint count, const Uint *kinds, const void **configs) {
  if (fail_update) return fail_update;
  for (Uint i = 0; i < count; i++) {
    Int status = kinds[i] == 0 ? change(of, configs[i]) : INVALID_VALUE;
    if (status) return status;
  }
  return SUCCESS;
}

static Int khr_update_linked(Recording *of, const BaseConfig *base) {
  if (fail_update) return fail_update;
  if (base->type != 0 || base->next) return INVALID_VALUE;
  for (Uint i = 0; i < base->count; i++) {
    const LinkedConfig *linked = &base->list[i];
    if (linked->type != 1 || linked->next) return INVALID_VALUE;
    Int status = change(of, &linked->config);
    if (status) return status;
  }
  return SUCCESS;
}

/* --- what the loader calls --- */

static Int answer(const void *value, size_t bytes, size_t room, void *to, size_t *needed) {
  if (needed) *needed = bytes;
  if (to && room < bytes) return INVALID_VALUE;
  if (to) memcpy(to, value, bytes);
  return SUCCESS;
}

static Int get_device_info(Handle device, Uint which, size_t room, void *to, size_t *needed) {
  static const Ulong none = 0, fields = 0x1F;
  static const struct { Uint version; char name[64]; } versions[] = {
      {9, "cl_khr_command_buffer"}, {9 << 12, "cl_khr_command_buffer_mutable_dispatch"}};
  static const char *const names[] = {
      "cl_khr_byte_addressable_store",
      "cl_khr_byte_addressable_store cl_qcom_recordable_queues",
      "cl_khr_byte_addressable_store cl_khr_command_buffer",
      "cl_khr_byte_addressable_store cl_khr_command_buffer cl_khr_command_buffer_mutable_dispatch"};
  const char *all = names[is_qcom() ? 1 : is_mutable() ? 3 : !strncmp(kind(), "khr", 3) ? 2 : 0];
  switch (which) {
    case 0x1030: return answer(all, strlen(all) + 1, room, to, needed);
    case 0x1060: {
      char copy[sizeof versions];
      memcpy(copy, versions, sizeof copy);
      Uint *second = (Uint *)(copy + sizeof versions[0]);
      *second = 9 << 12 | (strcmp(kind(), "khr") ? 0 : 5);
      return answer(copy, sizeof copy, room, to, needed);
    }
    case 0x41DE: if (is_qcom()) return answer(&longest, sizeof longest, room, to, needed); break;
    case 0x12AA: if (!is_qcom()) return answer(&none, sizeof none, room, to, needed); break;
    case 0x12B0: if (is_mutable()) return answer(&fields, sizeof fields, room, to, needed); break;
  }
  return BELOW(Int, GET_DEVICE_INFO, Handle, Uint, size_t, void *, size_t *)(device, which, room,
                                                                            to, needed);
}

static Handle create_queue_of(Handle context, Handle device, Ulong properties, Int *status) {
  int keeps = properties >> 30 & 1;
  if (keeps && (properties != 1u << 30 || !is_qcom())) {
    *status = INVALID_VALUE; /* the property stands alone */
    return NULL;
  }
  Handle queue = BELOW(Handle, CREATE_QUEUE, Handle, Handle, Ulong, Int *)(
      context, device, keeps ? 0 : properties, status);
  /* One that was released may have had the same address. */
  if (keeps || queue == recordable) recordable = keeps ? queue : NULL;
  return queue;
}

static Handle create_queue(Handle context, Handle device, Ulong properties, Int *status) {
  return create_queue_of(context, device, properties, status);
}

static Handle create_queue_with(Handle context, Handle device, const Ulong *properties,
                                Int *status) {
  Ulong bits = properties && properties[0] == 0x1093 ? properties[1] : 0;
  return create_queue_of(context, device, bits, status);
}

static Int enqueue_kernel(Handle queue, Handle kernel, Uint dimensions, const size_t *offset,
                          const size_t *global, const size_t *local, Uint waits, const Handle *w,
                          Handle *event) {
  if (queue == recordable && is_qcom()) {
    if (fail_record) return fail_record;
    if (event || waits || offset) return INVALID_VALUE;
    return open ? record(open, kernel, dimensions, global, local) : INVALID_OPERATION;
  }
  launches++;
  if (idle()) return event ? BELOW(Int, MARKER, Handle, Handle *)(queue, event) : SUCCESS;
  return BELOW(Int, ENQUEUE_KERNEL, Handle, Handle, Uint, const size_t *, const size_t *,
               const size_t *, Uint, const Handle *, Handle *)(queue, kernel, dimensions, offset,
                                                               global, local, waits, w, event);
}

static Int finish(Handle queue) {
  Int status = BELOW(Int, FINISH, Handle)(queue);
  return fail_finish ? fail_finish : status;
}

static Handle get_function(Handle platform, const char *name) {
  (void)platform;
  if (fail_find) return NULL;
  static const struct { const char *name; Handle function; } qcom[] = {
      {"clNewRecordingQCOM", qcom_new}, {"clEndRecordingQCOM", qcom_end},
      {"clReleaseRecordingQCOM", release}, {"clEnqueueRecordingQCOM", qcom_enqueue}},
  khr[] = {
      {"clCreateCommandBufferKHR", khr_create}, {"clCommandNDRangeKernelKHR", khr_command},
      {"clFinalizeCommandBufferKHR", khr_finalize}, {"clReleaseCommandBufferKHR", release},
      {"clEnqueueCommandBufferKHR", khr_enqueue}};
  if (is_qcom()) {
    for (size_t i = 0; i < sizeof qcom / sizeof *qcom; i++)
      if (!strcmp(name, qcom[i].name)) return qcom[i].function;
    return NULL;
  }
  for (size_t i = 0; i < sizeof khr / sizeof *khr; i++)
    if (!strcmp(name, khr[i].name)) return khr[i].function;
  if (!strcmp(name, "clUpdateMutableCommandsKHR") && is_mutable())
    return strcmp(kind(), "khr") ? (Handle)khr_update_linked : (Handle)khr_update;
  return NULL;
}

Int clGetLayerInfo(Uint which, size_t room, void *to, size_t *needed) {
  static const Uint version = 100;
  return which == 0x4240 ? answer(&version, sizeof version, room, to, needed) : INVALID_VALUE;
}

Int clInitLayer(Uint count, const Handle *target, Uint *made, const Handle **ours) {
  if (count <= CREATE_QUEUE_WITH_PROPERTIES || count > TABLE) return INVALID_VALUE;
  memcpy(below, target, count * sizeof *target);
  memcpy(table, target, count * sizeof *target);
  table[GET_DEVICE_INFO] = get_device_info;
  table[CREATE_QUEUE] = create_queue;
  table[CREATE_QUEUE_WITH_PROPERTIES] = create_queue_with;
  table[CREATE_KERNEL] = create_kernel;
  table[SET_KERNEL_ARG] = set_argument;
  table[ENQUEUE_KERNEL] = enqueue_kernel;
  table[FINISH] = finish;
  table[GET_FUNCTION] = get_function;
  *made = count;
  *ours = table;
  return SUCCESS;
}
