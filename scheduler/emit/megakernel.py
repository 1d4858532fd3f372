"""Writes the megakernel: all kernels of an artifact as functions, and one kernel that runs them.

    launch a, launch b, launch c     ->     launch replay(table, 0, 3)
    each work-group:  for record in table:  take tasks of it until none is left, and run them
                                            wait until all of its tasks are done

On a CPU, a launch costs about 20 us for waking the workers (PoCL 3.0, 2 cores). The megakernel
avoids that. runtime/run/megakernel.py describes records, the table and the counters.

A work-group waits only for tasks that another work-group has *taken*, so that one is running. A
work-group that starts late finds nothing left; a single one does everything. The last one to leave
resets the counters to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.lower import LoweredKernel
from scheduler.render.kernel_code import KernelCode
from scheduler.render.prelude.prelude import prelude_of

# Name of the kernel; its argument order and the table's layout are also part of the ABI.
KERNEL_NAME = "replay"
# With fewer launches than this, a megakernel saves nothing.
LEAST_LAUNCHES = 2

_HEADER = """
/* A work-item is a function call here, so what it asks about itself is answered by macros. */
#define get_global_id(d) ((size_t)((d) == 0 ? m_item : 0))
#define get_group_id(d) get_global_id(d)
#define get_global_linear_id() get_global_id(0)
#define get_global_size(d) ((size_t)((d) == 0 ? m_items : 1))
#define get_num_groups(d) get_global_size(d)
#define get_local_id(d) ((size_t)0)
#define get_local_linear_id() ((size_t)0)
#define get_local_size(d) ((size_t)1)
#define get_enqueued_local_size(d) ((size_t)1)
#define get_global_offset(d) ((size_t)0)
#define get_work_dim() 3u
"""

_RUNNER = """
#undef get_global_id
#undef get_group_id
#undef get_global_size

#ifdef __has_builtin
#if __has_builtin(__builtin_ia32_pause)
#define M_PAUSE() __builtin_ia32_pause()
#endif
#endif
#ifndef M_PAUSE
#define M_PAUSE()
#endif
/* Who waits long keeps a core from somebody: perhaps from the thread it waits for, when there are
   more threads than cores. After some 50 us of pauses it sleeps 20 us at a time, so that its core
   can take that thread over. Giving way (sched_yield) does not do that: nobody else waits for this
   core. System call 35 of Linux on this processor is nanosleep. */
#define M_SPINS 1000
#if defined(__x86_64__) && defined(__linux__) && defined(__clang__)
static __attribute__((noinline)) void m_sleep(void)
{
  struct { long seconds, nanoseconds; } m_time;
  m_time.seconds = 0;
  m_time.nanoseconds = 20000;
  long m_result;
  __asm__ volatile("syscall" : "=a"(m_result) : "0"(35L), "D"(&m_time), "S"(0L)
    : "rcx", "r11", "memory");
}
#define M_WAIT(spins) { if ((spins) < M_SPINS) M_PAUSE(); else m_sleep(); }
#else
#define M_WAIT(spins) M_PAUSE();
#endif

/* What one work-group stores has to be seen by another one that reads it in a later record: adding
   to a counter of finished tasks releases, reading it acquires. Taking a task orders nothing.
   OpenCL C 3.0 and 2.0 can say so. Before, atomics order nothing between work-groups by the letter;
   relied on is that compilers for CPUs make them sequentially consistent, as PoCL does, and a fence
   of global memory a fence for compiler and processor. */
#if (defined(__opencl_c_atomic_scope_device) && defined(__opencl_c_atomic_order_acq_rel)) || \\
    (__OPENCL_C_VERSION__ >= 200 && __OPENCL_C_VERSION__ < 300)
#define M_ATOMIC(p) ((volatile __global atomic_int*)(p))
#define M_TAKE(p) \\
  atomic_fetch_add_explicit(M_ATOMIC(p), 1, memory_order_relaxed, memory_scope_device)
#define M_TAKEN(p) atomic_load_explicit(M_ATOMIC(p), memory_order_relaxed, memory_scope_device)
#define M_FINISH(p, n) \\
  atomic_fetch_add_explicit(M_ATOMIC(p), n, memory_order_acq_rel, memory_scope_device)
#define M_FINISHED(p) atomic_load_explicit(M_ATOMIC(p), memory_order_acquire, memory_scope_device)
#else
#define M_TAKE(p) atomic_inc(p)
#define M_TAKEN(p) (*(p))
static int M_FINISH(volatile __global int* p, const int n)
{
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  const int before = atomic_add(p, n);
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return before;
}
static int M_FINISHED(volatile __global int* p)
{
  const int value = atomic_or(p, 0);
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return value;
}
#endif

/* Counters are a cache line apart. */
#define M_LINE 16
#define M_PARAMETERS __global uchar* m_memory, const __global uchar* m_data, \\
  const __global long* m_words, volatile __global int* m_taken, const int m_items, \\
  const int m_self, const int m_groups
/* A word is an offset in bytes, a multiple of 256, plus 1 if it is one into the data. */
#define M_AT(kind, n) ((kind)((m_words[n] & 1 ? (__global uchar*)m_data : m_memory) + \\
  (m_words[n] & ~255L)))
/* Each work-group has a part of the tasks, the same part of each record as far as tasks are alike:
   much of what it reads is then in its core's own cache. When its part is taken it takes from the
   parts of others. */
#define M_TASKS(call) \\
  int m_done = 0; \\
  for (int m_turn = 0; m_turn < m_groups; m_turn++) { \\
    const int m_part = (m_self + m_turn) % m_groups; \\
    const int m_begin = (int)((long)m_items * m_part / m_groups); \\
    const int m_end = (int)((long)m_items * (m_part + 1) / m_groups); \\
    volatile __global int* m_next = m_taken + m_part * M_LINE; \\
    if (m_turn && M_TAKEN(m_next) >= m_end - m_begin) continue; \\
    for (;;) { \\
      const int m_item = m_begin + M_TAKE(m_next); \\
      if (m_item >= m_end) break; \\
      call; \\
      m_done++; \\
    } \\
  } \\
  return m_done;
"""

_KERNEL = """
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void replay(__global uchar* m_memory, const __global uchar* m_data,
            const __global long* m_table, volatile __global int* m_counters,
            const int m_first, const int m_last)
{{
  const int m_groups = get_global_size(0), m_self = get_group_id(0);
  const int m_stride = (m_groups + 1) * M_LINE;
  for (int m_at = m_first; m_at < m_last; m_at++) {{
    const __global long* m_record = m_table + 3 * m_at;
    const __global long* m_words = m_table + m_record[2];
    volatile __global int* m_finished = m_counters + M_LINE + (m_at - m_first) * m_stride;
    volatile __global int* m_taken = m_finished + M_LINE;
    const int m_items = (int)m_record[1];
    int m_done = 0;
    switch ((int)m_record[0]) {{
{cases}
    }}
    if (m_done) M_FINISH(m_finished, m_done);
    for (int m_spins = 0; M_FINISHED(m_finished) < m_items; m_spins += m_spins < M_SPINS)
      M_WAIT(m_spins)
  }}
  /* Whoever is last knows that nobody looks at a counter any more. */
  if (M_FINISH(m_counters, 1) == m_groups - 1) {{
    const int m_end = M_LINE + (m_last - m_first) * m_stride;
    for (int m_i = 0; m_i < m_end; m_i += M_LINE) m_counters[m_i] = 0;
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel as a function of the megakernel."""

    name: str  # the kernel's name in the other programs
    code: KernelCode  # code of the kernel; all parameters are pointers to global memory
    origins: Sequence[str] = ()  # ONNX nodes, for the comment above it


def is_callable(kernel: LoweredKernel) -> bool:
    """Whether a kernel can be a function: buffers only, one work-item per group, nothing shared."""
    return kernel.code.group == 1 and kernel.code.is_callable


def origin_comment(origins: Sequence[str]) -> str:
    """Return the comment above a kernel, which names its ONNX nodes."""
    shown = ", ".join(origin.replace("*/", "* /") for origin in origins) or "-"
    return f"\n/* {shown} */\n"


def megakernel_source(functions: Sequence[Function]) -> str:
    """Return the OpenCL C of the megakernel; function n is case n of its switch."""
    bodies, runners, cases = [], [], []
    for number, function in enumerate(functions):
        code = function.code
        bodies.append(
            f"{origin_comment(function.origins)}static __attribute__((noinline))\n"
            f"void {function.name}(const int m_item, const int m_items, {code.declarations})\n"
            f"{code.body}"
        )
        words = (f"M_AT({p.type}, {i})" for i, p in enumerate(code.parameters))
        call = f"{function.name}(m_item, m_items, {', '.join(words)})"
        runners.append(
            f"static __attribute__((noinline)) int m_run_{number}(M_PARAMETERS)\n"
            f"{{\n  M_TASKS({call})\n}}\n"
        )
        cases.append(
            f"      case {number}: m_done = m_run_{number}(m_memory, m_data, m_words, m_taken, "
            "m_items, m_self, m_groups); break;"
        )
    text = "".join(bodies)
    kernel = _KERNEL.format(cases="\n".join(cases))
    head = prelude_of([function.code for function in functions], host_clang=True)
    return f"{head}{_HEADER}{text}{_RUNNER}{''.join(runners)}{kernel}"
