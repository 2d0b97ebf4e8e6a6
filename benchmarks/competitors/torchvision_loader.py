"""What tutorials load pictures with: torchvision's ImageFolder and transforms, torch's DataLoader."""

from loading import Loading
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import CenterCrop, Compose, PILToTensor, Resize


def main() -> None:
    task = Loading.given()
    transform = Compose([Resize(task.size), CenterCrop(task.size), PILToTensor()])  # bytes, as ours: a fourth of ToTensor's
    dataset = ImageFolder(str(task.folder), transform)
    loader = DataLoader(dataset, task.batch_size, shuffle=True, num_workers=task.workers)
    task.measure(lambda: (len(targets) for _, targets in loader))


if __name__ == "__main__":
    main()
