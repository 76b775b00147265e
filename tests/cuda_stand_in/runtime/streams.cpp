// SPDX-License-Identifier: BSD-3-Clause

// Runs streams in one of five orders.
#include "streams.h"

#include <algorithm>
#include <utility>

namespace cuda_stand_in {

Streams::Streams(const Settings& settings) : order_(settings.order), random_(settings.seed) {
  for (int device = 0; device < kMaxDevices; ++device)
    create(device, cudaStreamNonBlocking, 0).is_default = true;
}

Stream& Streams::create(int device, unsigned flags, int priority) {
  all_.push_back(std::make_unique<Stream>(Stream{
      .id = static_cast<int>(all_.size()),
      .device = device,
      .is_default = false,
      .syncs_with_default = !(flags & cudaStreamNonBlocking),
      .priority = priority,
      .queue = {},
  }));
  return *all_.back();
}

Stream& Streams::of(cudaStream_t handle, int current_device) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
    return *all_[current_device];
  return *reinterpret_cast<Stream*>(handle);
}

void Streams::enqueue(Stream& stream, std::function<void()> run) {
  wait_for_default_streams(stream);
  stream.queue.push_back(std::move(run));
  ++stream.enqueued;
  run_as_ordered(stream);
}

// The legacy default stream and the streams that are created without cudaStreamNonBlocking wait for
// each other.
void Streams::wait_for_default_streams(Stream& stream) {
  if (stream.syncs_with_default) return add_wait(stream, *all_[stream.device]);
  if (!stream.is_default) return;
  for (size_t i = 0; i < all_.size(); ++i)
    if (all_[i]->syncs_with_default && all_[i]->device == stream.device) add_wait(stream, *all_[i]);
}

void Streams::add_wait(Stream& stream, Stream& other) {
  stream.free_at_ns = std::max(stream.free_at_ns, other.free_at_ns);
  if (other.is_idle()) return;
  stream.queue.push_back([this, &other, up_to = other.enqueued] { run(other, up_to); });
  ++stream.enqueued;
}

void Streams::run(Stream& stream, uint64_t up_to) {
  while (stream.done < up_to && !stream.queue.empty()) {
    const std::function<void()> entry = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (entry) entry();
    ++stream.done;
  }
}

void Streams::run_device(int device) {
  for (size_t i = 0; i < all_.size(); ++i)
    if (all_[i]->device == device) run(*all_[i], all_[i]->enqueued);
}

void Streams::run_all() {
  for (int device = 0; device < kMaxDevices; ++device) run_device(device);
}

void Streams::run_as_ordered(Stream& stream) {
  if (order_ == Order::kRandom) return run_some_at_random();
  const bool runs_now = order_ == Order::kEager ||
                        (order_ == Order::kSideLazy && stream.is_default) ||
                        (order_ == Order::kSideEager && !stream.is_default);
  if (runs_now) run(stream, stream.enqueued);
}

void Streams::run_some_at_random() {
  // An entry may create streams, so the vector is walked by index.
  for (size_t i = 0; i < all_.size(); ++i) {
    Stream& stream = *all_[i];
    if (stream.is_idle() || random_() % 4 != 0) continue;
    run(stream, stream.done + 1 + random_() % (stream.enqueued - stream.done));
  }
}

void Streams::set_order(Order order, unsigned seed) {
  run_all();
  order_ = order;
  random_.seed(seed);
}

uint64_t Streams::pending() const {
  uint64_t entries = 0;
  for (const auto& stream : all_) entries += stream->enqueued - stream->done;
  return entries;
}

double Streams::device_free_at_ns(int device) const {
  double at_ns = 0;
  for (const auto& stream : all_)
    if (stream->device == device) at_ns = std::max(at_ns, stream->free_at_ns);
  return at_ns;
}

void Streams::forget_work() {
  for (const auto& stream : all_) {
    stream->queue.clear();
    stream->done = stream->enqueued;
  }
}

}  // namespace cuda_stand_in
