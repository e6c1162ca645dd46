// The tree of free blocks against a sorted vector.
#include <algorithm>
#include <deque>

#include "check.h"
#include "engine/free_tree.h"

using namespace coop;

namespace {

struct Model {
  std::vector<Block*> blocks;  // in address order

  Block* lowest(Bytes bytes) const {
    const auto at = std::find_if(blocks.begin(), blocks.end(), [&](Block* b) { return b->bytes >= bytes; });
    return at == blocks.end() ? nullptr : *at;
  }
  Block* highest(Bytes bytes) const {
    const auto at = std::find_if(blocks.rbegin(), blocks.rend(), [&](Block* b) { return b->bytes >= bytes; });
    return at == blocks.rend() ? nullptr : *at;
  }
  Block* smallest(Bytes bytes) const {  // of equals, the lowest
    Block* best = nullptr;
    for (Block* block : blocks) {
      if (block->bytes >= bytes && (!best || block->bytes < best->bytes)) best = block;
    }
    return best;
  }
  Bytes largest() const {
    Bytes most = 0;
    for (const Block* block : blocks) most = std::max(most, block->bytes);
    return most;
  }
};

void compare(const FreeTree& tree, const Model& model, FreeOrder order, Bytes bytes) {
  CHECK_EQUAL(tree.largest(), model.largest());
  if (order == FreeOrder::address) {
    CHECK_EQUAL(tree.lowest(bytes), model.lowest(bytes));
    CHECK_EQUAL(tree.highest(bytes), model.highest(bytes));
  } else {
    CHECK_EQUAL(tree.smallest(bytes), model.smallest(bytes));
  }
}

// The longest path from the root, found through the links of the blocks.
int height(const Block* block) { return block ? 1 + std::max(height(block->left), height(block->right)) : 0; }

}  // namespace

TEST(finds_what_a_sorted_list_finds_in_either_order) {
  for (const FreeOrder order : {FreeOrder::address, FreeOrder::size}) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      const check::Context context("seed", seed);
      check::Random random(seed);
      FreeTree tree(order);
      Model model;
      std::deque<Block> all(300);
      std::vector<Block*> outside;
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].offset = i * 1000;
        outside.push_back(&all[i]);
      }
      for (int step = 0; step < 4000; ++step) {
        // Many equal sizes: ties are where orders go wrong.
        if (!outside.empty() && (model.blocks.empty() || random.chance(step % 1000 < 500 ? 60 : 40))) {
          const std::size_t i = random.below(outside.size());
          Block* block = outside[i];
          outside.erase(outside.begin() + static_cast<std::ptrdiff_t>(i));
          block->bytes = random.between(1, seed % 2 ? 8 : 1000);
          tree.insert(block);
          model.blocks.insert(std::lower_bound(model.blocks.begin(), model.blocks.end(), block,
                                               [](Block* a, Block* b) { return a->offset < b->offset; }),
                              block);
        } else if (!model.blocks.empty()) {
          const std::size_t i = random.below(model.blocks.size());
          tree.erase(model.blocks[i]);
          outside.push_back(model.blocks[i]);
          model.blocks.erase(model.blocks.begin() + static_cast<std::ptrdiff_t>(i));
        }
        compare(tree, model, order, random.between(1, seed % 2 ? 10 : 1100));
      }
      for (Block* block : model.blocks) tree.erase(block);
      CHECK_EQUAL(tree.largest(), 0u);
      CHECK(tree.lowest(1) == nullptr && tree.highest(1) == nullptr && tree.smallest(1) == nullptr);
    }
  }
}

TEST(stays_shallow_whatever_the_order_of_insertion) {
  std::deque<Block> all(20000);
  for (const bool upwards : {true, false}) {
    FreeTree tree(FreeOrder::address);
    for (std::size_t i = 0; i < all.size(); ++i) {
      Block& block = all[upwards ? i : all.size() - 1 - i];
      block.offset = upwards ? i : all.size() - 1 - i;
      block.bytes = 1;
      tree.insert(&block);
    }
    const Block& root = *std::max_element(all.begin(), all.end(),
                                          [](const Block& a, const Block& b) { return a.priority < b.priority; });
    CHECK_AT_MOST(height(&root), 60);  // 15 would be perfect, 20,000 a list
  }
}
