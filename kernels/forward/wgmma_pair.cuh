// Pairs of CTAs: clusters of two, whose tiles see the same keys in the same order. Each CTA loads a half of every block into the shared
// memory of both, so that a multiprocessor takes half as much from L2. A buffer is empty when the readers of both are done.
//
// Where an even number of query heads shares a key/value head, the two tiles are the same rows of two of these heads: under any mask they
// see the same keys. Elsewhere they are neighbouring rows of one head, and the host launches pairs only without a mask. Then the
// second tile of a sequence may have no rows: its CTA loads its half and passes the blocks on.
//
// The first CTA takes tiles from the counter, reads lengths, and tells the other its tile. So both use the same lengths, even if those
// on the device change.
#pragma once

#include "forward/wgmma_scheduler.cuh"

namespace warptile {

// Which tiles a CTA of a pair computes. The first one takes them from `TileOrder` and tells the other, as soon as it knows: it would wait
// for the keys that the other loads.
template <class Traits> class PairOrder {
  public:
    using Layout = SharedLayout<Traits>;

    __device__ PairOrder(const ForwardTma& params, unsigned char* shared, Layout layout)
        : params(params.forward), shared(shared), layout(layout), order(params), is_first(cluster_rank() == 0)
    {
    }

    // Each writes a tile to `slot`; after the last one the end.
    __device__ void first(Tile& slot)
    {
        if (is_first)
            find(slot);
        else
            listen(slot);
    }
    __device__ void next(Tile& slot)
    {
        if (!is_first)
            listen(slot);
        else if (!known) {
            order.advance();
            find(slot);
        }
        known = false;
    }

    // Asks for the next number.
    __device__ void draw()
    {
        if (is_first)
            order.draw();
    }

    // Once it has been asked for: what `next` would do, ahead of time. The other CTA waits for it when it has loaded all of the present
    // tile.
    __device__ void look_ahead(Tile& slot)
    {
        if (!is_first)
            return;
        order.advance();
        find(slot);
        known = true;
    }

  private:
    static constexpr int WORDS = sizeof(Tile) / sizeof(int);

    // The tile of the present number, or of the next one that has a tile.
    __device__ void find(Tile& slot)
    {
        for (; !order.done(); order.advance()) {
            if (order.describe(slot)) {
                Tile other = slot;
                if (pairs_heads(params))
                    other.head++;
                else
                    other.first_query -= Traits::BLOCK_M;
                tell(other);
                return;
            }
            order.draw();
        }
        slot = Tile::end();
        tell(slot);
    }

    __device__ void tell(const Tile& tile)
    {
        barrier_wait(layout.mail_empty(), parity ^ 1);
        parity ^= 1;
        const unsigned mail = address_in(shared_address(&Layout::mail(shared)), 1), full = address_in(layout.mail_full(), 1);
        const int* const words = reinterpret_cast<const int*>(&tile);
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            send_in_cluster(mail + i * sizeof(int), words[i], full);
    }

    __device__ void listen(Tile& tile)
    {
        barrier_arrive_expect_bytes(layout.mail_full(), sizeof(Tile));
        barrier_wait(layout.mail_full(), parity);
        parity ^= 1;
        tile = Layout::mail(shared);
        barrier_arrive_in_cluster(address_in(layout.mail_empty(), 0));
    }

    const Forward& params;
    unsigned char* shared;
    const Layout layout;
    TileOrder<Traits> order;
    const bool is_first;
    bool known = false;  // the next tile already
    unsigned parity = 0; // of the next tile's phase
};

} // namespace warptile
