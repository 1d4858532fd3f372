/* Builds OpenCL C files, one after the other, with the first device there is.
 *
 * It reads a line for each from stdin: OPTIONS, a tab, FILE. The driver prints the code of kernels
 * on stderr (IR3_SHADER_DEBUG), and so are these lines:
 *
 *     @device NAME | VERSION OF THE DRIVER
 *     @begin FILE
 *     @error TEXT            of the compiler, one line after the other
 *     @end FILE CODE         0, or OpenCL's error
 *
 * A compiler that crashes leaves the last file without its @end. Exit code 3: no device.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  char *text = NULL;
  if (fseek(file, 0, SEEK_END) == 0) {
    long length = ftell(file);
    rewind(file);
    text = length < 0 ? NULL : malloc((size_t)length + 1);
    if (text && fread(text, 1, (size_t)length, file) != (size_t)length) {
      free(text);
      text = NULL;
    }
    *size = (size_t)length;
  }
  fclose(file);
  return text;
}

static void print_log(cl_program program, cl_device_id device) {
  size_t size = 0;
  clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
  char *log = calloc(size + 1, 1);
  if (!log) return;
  clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log, NULL);
  for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n"))
    fprintf(stderr, "@error %s\n", line);
  free(log);
}

static cl_int build(cl_context context, cl_device_id device, const char *options,
                    const char *path) {
  size_t size = 0;
  char *text = read_file(path, &size);
  if (!text) {
    fprintf(stderr, "@error cannot be read\n");
    return CL_INVALID_VALUE;
  }
  cl_int code = CL_SUCCESS;
  const char *texts[] = {text};
  cl_program program = clCreateProgramWithSource(context, 1, texts, &size, &code);
  if (code == CL_SUCCESS) {
    code = clBuildProgram(program, 1, &device, options, NULL, NULL);
    if (code != CL_SUCCESS) print_log(program, device);
    clReleaseProgram(program);
  }
  free(text);
  return code;
}

int main(void) {
  cl_platform_id platform;
  cl_device_id device;
  cl_int code = CL_SUCCESS;
  char name[256] = "", driver[256] = "", line[8192];
  if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
      clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS) {
    fprintf(stderr, "@error no device\n");
    return 3;
  }
  clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL);
  clGetDeviceInfo(device, CL_DRIVER_VERSION, sizeof driver, driver, NULL);
  fprintf(stderr, "@device %s | %s\n", name, driver);
  cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
  if (code != CL_SUCCESS) return 3;
  while (fgets(line, sizeof line, stdin)) {
    char *file = strchr(line, '\t');
    if (!file) return 2;
    *file++ = '\0';
    file[strcspn(file, "\n")] = '\0';
    fprintf(stderr, "@begin %s\n", file);
    code = build(context, device, line, file);
    fprintf(stderr, "@end %s %d\n", file, code);
  }
  clReleaseContext(context);
  return 0;
}
