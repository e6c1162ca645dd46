// The tally listens where PyTorch's memory profiler does: its CPU allocator reports to it, on this
// thread and on those that work for it. Others expect a profiler there, and some use it: autograd
// functions ask for its settings. So it is one, which is disabled.
#include "torch/tally.h"

#include <c10/core/Allocator.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <memory>
#include <mutex>

namespace coop {
namespace {

using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;

class Tally final : public ProfilerStateBase {
 public:
  Tally() : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled)) {}
  ActiveProfilerType profilerType() override { return ActiveProfilerType::NONE; }
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    const std::lock_guard lock(mutex_);
    now_ += bytes;
    most_ = std::max(most_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  // The allocator logs a warning that it cannot report the end of what was there before anybody
  // listened. It need not.
  void hush(bool on) {
    constexpr int kErrors = 2;
    if (on) log_level_ = FLAGS_caffe2_log_level;
    FLAGS_caffe2_log_level = on ? std::max(log_level_, kErrors) : log_level_;
  }

  void begin() {
    const std::lock_guard lock(mutex_);
    now_ = most_ = 0;
  }
  int64_t most() {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  std::mutex mutex_;
  int64_t now_ = 0, most_ = 0;  // since the beginning
  int log_level_ = 0;           // before
};

}  // namespace

void bind_tally(pybind11::module_& module) {
  pybind11::class_<Tally, std::shared_ptr<Tally>>(module, "Tally")
      .def(pybind11::init<>())
      .def("listen",
           [](const std::shared_ptr<Tally>& tally) {
             c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, tally);
             tally->hush(true);
           })
      .def("stop",
           [](Tally& tally) {
             tally.hush(false);
             c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
           })
      .def("begin", &Tally::begin)
      .def_property_readonly("most", &Tally::most);
}

}  // namespace coop
