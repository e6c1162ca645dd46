// The buckets of DDP's reducer: flat tensors in which gradients travel.
//
// The reducer asks whether a gradient lies in its bucket, by comparing pointers, without an
// operator. So its buckets are never recomputed, and they are resident while a backward pass runs.
// In between they may leave with their bytes, if there is a tier. src/coop/boundary.py says when:
// it wraps the reducer's methods.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace coop {

class Buckets {
 public:
  // While one of these lives, what ops make on this thread are buckets.
  class Collecting {
   public:
    explicit Collecting(Buckets& buckets);
    ~Collecting();
    Collecting(const Collecting&) = delete;
    Collecting& operator=(const Collecting&) = delete;

   private:
    Buckets* const before_;
  };
  // Those that are being collected on this thread; null: none are.
  static Buckets* collecting();

  void add(c10::StorageImpl* impl);
  // Brings them back, and pins them.
  void keep();
  void release();

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::vector<Weak> all_, kept_;
};

void bind_buckets(pybind11::module_& module);

}  // namespace coop
