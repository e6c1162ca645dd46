// Free blocks in a treap, in address order or in size order.
//
// Address order finds the lowest or highest block that is large enough, using the largest size in
// each subtree. Size order finds the smallest block that is large enough. Everything is O(log n)
// expected.
#pragma once

#include "engine/block.h"

namespace coop {

enum class FreeOrder { address, size };

class FreeTree {
 public:
  explicit FreeTree(FreeOrder order) : order_(order) {}

  void insert(Block* block) {
    block->left = block->right = nullptr;
    block->largest = block->bytes;
    seed_ = seed_ * 1664525u + 1013904223u;
    block->priority = seed_;
    root_ = insert(root_, block);
  }
  void erase(Block* block) { root_ = erase(root_, block); }

  Bytes largest() const { return root_ ? root_->largest : 0; }

  Block* lowest(Bytes bytes) const {
    Block* node = root_;
    if (!node || node->largest < bytes) return nullptr;
    for (;;) {
      if (node->left && node->left->largest >= bytes) {
        node = node->left;
      } else if (node->bytes >= bytes) {
        return node;
      } else {
        node = node->right;
      }
    }
  }
  Block* highest(Bytes bytes) const {
    Block* node = root_;
    if (!node || node->largest < bytes) return nullptr;
    for (;;) {
      if (node->right && node->right->largest >= bytes) {
        node = node->right;
      } else if (node->bytes >= bytes) {
        return node;
      } else {
        node = node->left;
      }
    }
  }
  // The free block that contains this offset; only in address order.
  Block* holding(Bytes offset) const {
    for (Block* node = root_; node;) {
      if (offset < node->offset) {
        node = node->left;
      } else if (offset < node->end()) {
        return node;
      } else {
        node = node->right;
      }
    }
    return nullptr;
  }
  // The smallest that fits; only in size order.
  Block* smallest(Bytes bytes) const {
    Block* best = nullptr;
    for (Block* node = root_; node;) {
      if (node->bytes >= bytes) {
        best = node;
        node = node->left;
      } else {
        node = node->right;
      }
    }
    return best;
  }

 private:
  bool less(const Block* a, const Block* b) const {
    if (order_ == FreeOrder::size && a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->offset < b->offset;
  }
  static void update(Block* node) {
    Bytes most = node->bytes;
    if (node->left && node->left->largest > most) most = node->left->largest;
    if (node->right && node->right->largest > most) most = node->right->largest;
    node->largest = most;
  }
  void split(Block* node, const Block* at, Block*& low, Block*& high) {
    if (!node) {
      low = high = nullptr;
    } else if (less(node, at)) {
      split(node->right, at, node->right, high);
      update(low = node);
    } else {
      split(node->left, at, low, node->left);
      update(high = node);
    }
  }
  static Block* merge(Block* low, Block* high) {
    if (!low) return high;
    if (!high) return low;
    if (low->priority > high->priority) {
      low->right = merge(low->right, high);
      update(low);
      return low;
    }
    high->left = merge(low, high->left);
    update(high);
    return high;
  }
  Block* insert(Block* node, Block* block) {
    if (!node) return block;
    if (block->priority > node->priority) {
      split(node, block, block->left, block->right);
      update(block);
      return block;
    }
    if (less(block, node)) {
      node->left = insert(node->left, block);
    } else {
      node->right = insert(node->right, block);
    }
    update(node);
    return node;
  }
  Block* erase(Block* node, Block* block) {
    if (node == block) return merge(node->left, node->right);
    if (less(block, node)) {
      node->left = erase(node->left, block);
    } else {
      node->right = erase(node->right, block);
    }
    update(node);
    return node;
  }

  FreeOrder order_;
  Block* root_ = nullptr;
  std::uint32_t seed_ = 1;
};

}  // namespace coop
