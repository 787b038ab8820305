// The kernels of the paper's comparison by name, for the emulated driver.
#pragma once
#include "../../baselines/lca.cuh"

namespace paper_kernels {
#include "../../baselines/paper.cu"
}
namespace heat_map_kernels {
#define RMQ_HEAT_MAP
#undef COALESCED
#undef VECTOR
#undef ASK
#include "../../baselines/paper.cu"
}
namespace lca_kernels {
#include "../../baselines/lca.cu"
}
namespace tour_kernels {
#include "../../baselines/lca_tour.cu"
}
namespace limit_kernels {
#include "../../baselines/limit.cu"
}

#define ADD_PAPER_AS(K, P, W)                                                                                          \
  ADD(paper_kernels, paper_coalesced_##K##_g16_c32_##P##_##W) ADD(paper_kernels, paper_multi_load_##K##_g16_c32_##P##_##W) \
  ADD(paper_kernels, paper_vector_##K##_c8_##P##_##W)                                                                  \
  ADD(paper_kernels, paper_full_scan_##K##_##P##_##W) ADD(paper_kernels, paper_warp_scan_##K##_##P##_##W)
#define ADD_PAPER_STEPS(K, P) \
  ADD(paper_kernels, paper_no_shuffle_##K##_g16_c32_##P##_value) ADD(paper_kernels, paper_atomic_min_##K##_g16_c32_##P##_value) \
  ADD(paper_kernels, paper_one_sided_##K##_c8_##P##_value)
#define ADD_PAPER(K)                                                                                                   \
  ADD_PAPER_AS(K, p32, value) ADD_PAPER_AS(K, p32, position) ADD_PAPER_AS(K, p64, value) ADD_PAPER_AS(K, p64, position) \
  ADD_PAPER_STEPS(K, p32) ADD_PAPER_STEPS(K, p64)                                                                      \
  ADD(paper_kernels, paper_build_##K##_value) ADD(paper_kernels, paper_build_##K##_p32) ADD(paper_kernels, paper_build_##K##_p64) \
  ADD(lca_kernels, lca_tree_##K) ADD(lca_kernels, lca_answer_##K##_p32_value) ADD(lca_kernels, lca_answer_##K##_p32_position)     \
  ADD(tour_kernels, tour_tree_##K) ADD(tour_kernels, tour_nodes_##K) ADD(tour_kernels, tour_values_##K)                           \
  ADD(limit_kernels, limit_differ_##K) ADD(limit_kernels, limit_least_##K) ADD(limit_kernels, limit_leftmost_##K)
#define ADD_HEAT(G, C) \
  ADD(heat_map_kernels, paper_coalesced_u32_g##G##_c##C##_p32_value) ADD(heat_map_kernels, paper_multi_load_u32_g##G##_c##C##_p32_value)
#define ADD_HEATS(G) ADD_HEAT(G, 32) ADD_HEAT(G, 64) ADD_HEAT(G, 128)
#define ADD_RANDOM(G) ADD(limit_kernels, limit_random_segments_g##G) ADD(limit_kernels, limit_random_same_g##G)
#define ADD_BASELINES                                                                                                  \
  ADD_PAPER(u32) ADD_PAPER(u64)                                                                                        \
  ADD_HEATS(1) ADD_HEATS(2) ADD_HEATS(4) ADD_HEATS(8) ADD_HEATS(16) ADD_HEATS(32)                                      \
  ADD_HEAT(1, 8) ADD_HEAT(2, 8) ADD_HEAT(4, 8) ADD_HEAT(8, 8)                                                          \
  ADD_HEAT(1, 16) ADD_HEAT(2, 16) ADD_HEAT(4, 16) ADD_HEAT(8, 16) ADD_HEAT(16, 16)                                     \
  ADD(heat_map_kernels, paper_vector_u32_c4_p32_value) ADD(heat_map_kernels, paper_vector_u32_c16_p32_value)           \
  ADD(heat_map_kernels, paper_vector_u32_c32_p32_value) ADD(heat_map_kernels, paper_vector_u32_c8_p32_value)                                                              \
  ADD(lca_kernels, lca_paths) ADD(lca_kernels, lca_tile_sums) ADD(lca_kernels, lca_scan) ADD(lca_kernels, lca_labels)  \
  ADD(tour_kernels, tour_edges) ADD(tour_kernels, tour_links) ADD(tour_kernels, tour_successors) ADD(tour_kernels, tour_split) \
  ADD(tour_kernels, tour_walk) ADD(tour_kernels, tour_offsets) ADD(tour_kernels, tour_places) ADD(tour_kernels, tour_steps)  \
  ADD(tour_kernels, tour_numbers) ADD(tour_kernels, tour_ascendants) ADD(tour_kernels, tour_nodes_of) ADD(tour_kernels, tour_ancestors) \
  ADD(limit_kernels, limit_values) ADD(limit_kernels, limit_reads_b128_p32) ADD(limit_kernels, limit_reads_b128_p64) \
  ADD(limit_kernels, limit_queries_p32) ADD(limit_kernels, limit_queries_p64) ADD(limit_kernels, limit_copy)           \
  ADD_RANDOM(1) ADD_RANDOM(2) ADD_RANDOM(4) ADD_RANDOM(8) ADD_RANDOM(16) ADD_RANDOM(32) ADD_RANDOM(64) ADD_RANDOM(128) \
  ADD_RANDOM(256)
