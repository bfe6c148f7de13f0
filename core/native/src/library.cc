#include "library.h"

#include <cstring>
#include <string>

#include "hwy/highway.h"
#include "xla/ffi/api/c_api.h"

namespace {

// Bits of the targets at hand; a smaller bit is a better target.
int64_t Targets() {
  static const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets;
}

}  // namespace

int32_t tokumx_xla_ffi_version() {
  return XLA_FFI_API_MAJOR * 1000 + XLA_FFI_API_MINOR;
}

const char* tokumx_instruction_sets() {
  static const std::string names = [] {
    std::string joined;
    for (int64_t rest = Targets(); rest != 0; rest &= rest - 1) {
      if (!joined.empty()) joined += ' ';
      joined += hwy::TargetName(rest & -rest);
    }
    return joined;
  }();
  return names.c_str();
}

int32_t tokumx_use_instruction_set(const char* name) {
  const int64_t all = Targets();
  if (*name == '\0') {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
    return 0;
  }
  for (int64_t rest = all; rest != 0; rest &= rest - 1) {
    if (std::strcmp(hwy::TargetName(rest & -rest), name) != 0) continue;
    hwy::SetSupportedTargetsForTest(rest);
    hwy::GetChosenTarget().DeInit();
    return 0;
  }
  return -1;
}
