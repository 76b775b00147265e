// SPDX-License-Identifier: BSD-3-Clause

// Runs a job in the stream's turn and writes its results to the bytes of the CUDA tensors.
#include "host_job.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <string>

#include "../control.h"
#include "covered.h"
#include "plain_thread.h"

namespace cuda_stand_in {
namespace {

/// Returns the results of a call, with lists split up; undefined where a result is no tensor.
std::vector<at::Tensor> flat_results(const torch::jit::Stack& stack) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) all.push_back(tensor);
    } else {
      all.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
  return all;
}

void write_results(const HostJob& job, const std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < std::min(values.size(), job.results.size()); ++i) {
    const at::Tensor& to = job.results[i];
    const at::Tensor& value = values[i];
    if (!to.defined() || !value.defined() || to.numel() == 0) continue;
    if (to.sizes() == value.sizes()) {
      to.copy_(value);
    } else {
      count_garbage(job.op, "the CPU kernel returns another shape");
    }
  }
}

void run(HostJob& job) {
  const PlainThread plain;
  try {
    job.compute(job.op, job.arguments, job.generator);
    write_results(job, flat_results(job.arguments));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    count_garbage(job.op, text.substr(0, text.find('\n')));
  }
}

}  // namespace

void count_garbage(const c10::OperatorHandle& op, const std::string& reason) {
  count_garbage((toString(op.operator_name()) + ": " + reason).c_str());
}

void enqueue(std::unique_ptr<HostJob> job) {
  const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
  void* const stream = cuda.getStream(cuda.getDevice()).native_handle();
  cuda_stand_in_enqueue(
      stream,
      [](void* data) {
        const std::unique_ptr<HostJob> queued(static_cast<HostJob*>(data));
        run(*queued);
      },
      job.release());
}

}  // namespace cuda_stand_in
